"""Finds and waits for free NeuronCores, as `neuron-ls --wait-free` and `neuron-run --wait` do.

    import os
    from neurontools import free_cores

    os.environ["NEURON_RT_VISIBLE_CORES"] = str(free_cores.wait(4))

A core counts as free only if it certainly has no owner and no memory in use. Nothing is reserved: another process may
take the cores before the caller does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

from neurontools.catalog.topology import Topology, TopologyKind
from neurontools.client.daemon_client import Client, connect
from neurontools.driver.environment import logical_neuroncore_config
from neurontools.model import LogicalNeuronCore, Snapshot, health, logical_cores
from neurontools.model.finding import Severity
from neurontools.rpc.ask import NoDaemon, TimedOut
from neurontools.util.errors import EXIT_TIMED_OUT, EXIT_USAGE, UserError

__all__ = ["CoreRange", "NeverFree", "NotFree", "free_indices", "select", "wait"]

_T = TypeVar("_T")
_AGAIN_SECONDS = 0.25
_LONGEST_ABSENCE_SECONDS = 60.0  # timeout for a restart of the daemon


class NotFree(UserError):
    """The timeout passed before enough consecutive NeuronCores became free."""


class NeverFree(UserError):
    """The host or the selected devices have fewer consecutive NeuronCores than requested."""


@dataclass(frozen=True, slots=True)
class CoreRange:
    """Consecutive logical NeuronCores. `str()` gives a value for NEURON_RT_VISIBLE_CORES: `3` or `4-7`."""

    first: int
    count: int

    @property
    def last(self) -> int:
        """Index of the last core in the range."""
        return self.first + self.count - 1

    @property
    def indices(self) -> range:
        """Indices of all cores in the range."""
        return range(self.first, self.first + self.count)

    def __str__(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first}-{self.last}"


def free_indices(snapshot: Snapshot, logical_neuroncore_config: int | None = None) -> frozenset[int]:
    """Returns the indices of the free logical NeuronCores.

    `logical_neuroncore_config` (LNC) is the number of physical cores per logical core; None: the host's default.
    """
    return frozenset(core.index for core in _cores(snapshot, logical_neuroncore_config) if core.is_free is True)


def select(
    snapshot: Snapshot,
    count: int,
    *,
    logical_neuroncore_config: int | None = None,
    device_indices: Sequence[int] = (),
) -> CoreRange | None:
    """Returns the best `count` consecutive free logical NeuronCores, or None if no such range is free.

    Considers only `device_indices`, if given, and skips devices with a critical finding. Compares ranges by these
    criteria, in this order: fewest devices, fewest hops between them, fewest entirely free devices that the range only
    partly uses, fewest free cores left on its devices, lowest index. Raises NeverFree if the host or the given devices
    have too few cores, and ValueError for a count below 1.
    """
    if count < 1:
        raise ValueError(f"count={count}: not a number of NeuronCores; give a whole number from 1")
    cores = _cores(snapshot, logical_neuroncore_config)
    _check_possible(snapshot, count, logical_neuroncore_config, device_indices)
    critical = {verdict.device_index for verdict in health.verdicts(snapshot) if verdict.severity is Severity.CRITICAL}
    usable = [
        core.is_free is True
        and core.device_index not in critical
        and (not device_indices or core.device_index in device_indices)
        for core in cores
    ]
    device_of = [core.device_index for core in cores]
    free: dict[int, int] = {}
    size: dict[int, int] = {}
    for core in cores:
        free[core.device_index] = free.get(core.device_index, 0) + (core.is_free is True)
        size[core.device_index] = size.get(core.device_index, 0) + 1
    topology = _topology(snapshot)
    best: tuple[tuple[int, int, int, int, int], int] | None = None
    run = 0
    for last in range(len(cores)):
        run = run + 1 if usable[last] else 0
        if run < count:
            continue
        first = last - count + 1
        taken_counts: dict[int, int] = {}
        for position in range(first, last + 1):
            taken_counts[device_of[position]] = taken_counts.get(device_of[position], 0) + 1
        devices = sorted(taken_counts)
        broken = sum(free[device] == size[device] and taken_counts[device] < size[device] for device in devices)
        spare = sum(free[device] - taken_counts[device] for device in devices)
        cost = (len(devices), _hops(topology, devices), broken, spare, first)
        if best is None or cost < best[0]:
            best = cost, first
    return None if best is None else CoreRange(cores[best[1]].index, count)


def wait(
    count: int,
    *,
    timeout_seconds: float | None = None,
    socket: str | None = None,
    device_indices: Sequence[int] = (),
    environment: Mapping[str, str] = os.environ,
) -> CoreRange:
    """Waits until `count` consecutive logical NeuronCores are free, and returns the range that `select` chooses.

    Uses the LNC from `environment`, else the host's default. A `timeout_seconds` of 0 checks once, None waits forever.
    Raises NotFree after the timeout, NeverFree if the host has too few cores, and the errors of `client.connect`.
    """
    lnc = logical_neuroncore_config(environment)

    def select_range(snapshot: Snapshot) -> CoreRange | None:
        return select(snapshot, count, logical_neuroncore_config=lnc, device_indices=device_indices)

    with connect(socket) as daemon:
        found = wait_until(select_range, daemon, timeout_seconds)
    if found is None:
        raise NotFree(
            f"no {count} NeuronCores in a row became free in {timeout_seconds:g} s; neuron-ls shows who holds them",
            EXIT_TIMED_OUT,
        )
    return found


def wait_until(
    read: Callable[[Snapshot], _T | None], daemon: Client, timeout_seconds: float | None = None
) -> _T | None:
    """Calls `read` on each new snapshot until it returns a value; returns this value, or None after the timeout.

    The daemon sends a snapshot as soon as a core changes its owner. If the daemon disappears, waits up to a minute for
    its restart, then raises NoDaemon or TimedOut. Raises immediately if the daemon does not answer the first request.
    """
    ends_at = float("inf") if timeout_seconds is None else monotonic() + timeout_seconds
    answer = read(daemon.snapshot())
    seen_at = monotonic()
    while answer is None and (remaining_seconds := ends_at - monotonic()) > 0:
        try:
            for snapshot in daemon.watch(duration_seconds=remaining_seconds):
                seen_at = monotonic()
                answer = read(snapshot)
                if answer is not None:
                    break
        except (NoDaemon, TimedOut):
            if monotonic() > seen_at + _LONGEST_ABSENCE_SECONDS:
                raise
            sleep(_AGAIN_SECONDS)
    return answer


def _cores(snapshot: Snapshot, lnc: int | None) -> tuple[LogicalNeuronCore, ...]:
    """Returns the host's logical cores under an LNC; the host's default replaces an LNC that the hardware lacks."""
    return logical_cores(snapshot, lnc if lnc in snapshot.instance.logical_neuroncore_configs else None)


def _check_possible(snapshot: Snapshot, count: int, lnc: int | None, device_indices: Sequence[int]) -> None:
    """Raises NeverFree if even the longest run of consecutive devices has fewer than `count` cores."""
    instance = snapshot.instance
    if lnc not in instance.logical_neuroncore_configs:
        lnc = instance.logical_neuroncore_config
    per_device = instance.physical_cores_per_device // lnc
    own = instance.expected_device_indices or range(instance.device_count)
    there = set(device_indices or own).intersection(own)
    row = longest = 0
    for index in range(max(own, default=-1) + 1):
        row = row + 1 if index in there else 0
        longest = max(longest, row)
    if count > longest * per_device:
        owner = "these devices have" if device_indices else "this host has"
        in_a_row = " in a row" if device_indices else ""
        raise NeverFree(f"{owner} {longest * per_device} NeuronCores{in_a_row}; {count} will never be free", EXIT_USAGE)


def _topology(snapshot: Snapshot) -> Topology | None:
    devices = sorted(snapshot.devices, key=lambda device: device.index)
    try:
        return Topology(TopologyKind(snapshot.instance.topology), tuple(device.connected_to for device in devices))
    except ValueError:  # a present device lists a missing one as its neighbour
        return None


def _hops(topology: Topology | None, devices: list[int]) -> int:
    """Returns the sum of the NeuronLink hops over all pairs of devices; 0 if the topology is unknown."""
    if topology is None or len(devices) < 2:
        return 0
    far = topology.device_count
    pairs = ((a, b) for position, a in enumerate(devices) for b in devices[position + 1 :])
    return sum(far if (hops := topology.hops(a, b)) is None else hops for a, b in pairs)
