"""Free cores for a process to come: contiguous, on as few devices as can be, and those close to each other."""

from __future__ import annotations

from neurontools.catalog.topology import Topology, TopologyKind
from neurontools.model import Snapshot, logical_cores


def free_range(
    snapshot: Snapshot,
    count: int,
    lnc: int | None = None,
    device_indices: tuple[int, ...] = (),
    avoided_devices: frozenset[int] = frozenset(),
) -> tuple[int, int] | None:
    """First and last of `count` free logical cores in a row, the best there are; None when there are none.

    Best is what spans the fewest devices, then what has the fewest hops between them, then what leaves the fewest
    devices that were wholly free broken, then what fills the fullest device, then the lowest.
    """
    cores = logical_cores(snapshot, lnc)
    usable = [
        core.is_free is True
        and core.device_index not in avoided_devices
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
        taken: dict[int, int] = {}
        for position in range(first, last + 1):
            taken[device_of[position]] = taken.get(device_of[position], 0) + 1
        devices = sorted(taken)
        broken = sum(free[device] == size[device] and taken[device] < size[device] for device in devices)
        spare = sum(free[device] - taken[device] for device in devices)
        cost = (len(devices), _hops(topology, devices), broken, spare, first)
        if best is None or cost < best[0]:
            best = cost, first
    return None if best is None else (cores[best[1]].index, cores[best[1] + count - 1].index)


def _topology(snapshot: Snapshot) -> Topology | None:
    devices = sorted(snapshot.devices, key=lambda device: device.index)
    try:
        return Topology(TopologyKind(snapshot.instance.topology), tuple(device.connected_to for device in devices))
    except ValueError:  # a device is missing: its neighbours still name it
        return None


def _hops(topology: Topology | None, devices: list[int]) -> int:
    """The sum over all pairs."""
    if topology is None or len(devices) < 2:
        return 0
    far = topology.device_count
    pairs = ((a, b) for position, a in enumerate(devices) for b in devices[position + 1 :])
    return sum(far if (hops := topology.hops(a, b)) is None else hops for a, b in pairs)
