"""Fault requests, and fault plans, which generate requests from a random seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from neurontools.faults.kinds import DEVICE_PARTS, KINDS, FaultDuration, FaultKind
from neurontools.model import FaultState, InjectedFault
from neurontools.util.terminal import error_excerpt, escape_controls, excerpt
from neurontools.util.units import devices_text

MOST_SECONDS = 366 * 86_400.0
MOST_EXECUTIONS = 2**53
LARGEST_INDEX = 2**31 - 1
LARGEST_SEED = 2**64 - 1
MOST_FAULTS = 1000  # limit of faults for each host, in a plan and in the host's daemon


class ImpossibleFault(ValueError):
    """The fault request is invalid. The message states the value, the reason and a valid alternative."""


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """A request to inject a fault. Raises ImpossibleFault if the request is invalid.

    Names exactly one target: a device, a core or a process. A fault kind that takes down the host has no target.
    `neuroncore_index` counts logical cores under the host's default logical NeuronCore configuration. If
    `after_executions` is None, a fault of a kind that affects executions affects the next execution.
    """

    kind: str
    device_index: int | None = None
    neuroncore_index: int | None = None
    pid: int | None = None
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float | None = None
    amount: float | None = None
    part: str | None = None
    seed: int = 0
    peer_device_index: int | None = None

    def __post_init__(self) -> None:
        kind = self.definition
        targets = sum(target is not None for target in (self.device_index, self.neuroncore_index, self.pid))
        if kind.loses_host and targets:
            raise ImpossibleFault(f"{kind.name}: it affects the whole host; give no device, NeuronCore or process")
        if not kind.loses_host and targets != 1:
            raise ImpossibleFault(f"{kind.name}: give one of a device, a NeuronCore and a process")
        for value, name in ((self.device_index, "device"), (self.neuroncore_index, "NeuronCore"), (self.pid, "PID")):
            if value is not None and not 0 <= value <= LARGEST_INDEX:
                raise ImpossibleFault(f"{value} is no {name}")
        if self.after_executions is not None and self.after_seconds is not None:
            raise ImpossibleFault("after executions and after seconds exclude each other; give one of them")
        if not kind.affects_executions and (self.after_executions is not None or self.probability is not None):
            raise ImpossibleFault(f"{kind.name}: no execution meets it; say when by seconds")
        if self.after_executions is not None and not 0 <= self.after_executions <= MOST_EXECUTIONS:
            raise ImpossibleFault(f"{self.after_executions} is no number of executions; give 0 or more")
        if self.after_seconds is not None and not 0 <= self.after_seconds <= MOST_SECONDS:
            raise ImpossibleFault(f"{self.after_seconds:g} s is no delay; give 0 to a year in seconds")
        if self.for_seconds is not None and not 0 < self.for_seconds <= MOST_SECONDS:
            raise ImpossibleFault(
                f"{self.for_seconds:g} s is no duration; give more than 0, at most a year, in seconds"
            )
        if self.probability is not None and not 0 < self.probability <= 1:
            raise ImpossibleFault(f"{self.probability:g} is no probability; give more than 0, at most 1")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ImpossibleFault(f"{self.seed} is no seed; give a whole number from 0 to {LARGEST_SEED}")
        self._check_amount(kind)
        self._check_peer(kind)

    def _check_peer(self, kind: FaultKind) -> None:
        if self.peer_device_index is None:
            return
        if not kind.accepts_peer:
            raise ImpossibleFault(f"{kind.name}: it affects no single link; leave the peer out")
        if self.device_index is None or self.peer_device_index == self.device_index:
            raise ImpossibleFault(f"{kind.name}: a link connects two devices; give two different ones")
        if not 0 <= self.peer_device_index <= LARGEST_INDEX:
            raise ImpossibleFault(f"{self.peer_device_index} is no device")

    def _check_amount(self, kind: FaultKind) -> None:
        if self.amount is not None:
            if kind.amount is None:
                raise ImpossibleFault(f"{kind.name}: this fault has no amount; leave it out")
            bounds = kind.amount
            is_whole = not bounds.is_whole or (math.isfinite(self.amount) and self.amount == int(self.amount))
            if not (bounds.least <= self.amount <= bounds.most and is_whole):
                range_text = "a whole number from" if bounds.is_whole else "from"
                raise ImpossibleFault(
                    f"{kind.name}: {self.amount:g} is no amount; give {range_text} {bounds.least:g} to {bounds.most:g} "
                    f"({bounds.unit})"
                )
        if self.part is not None and not kind.accepts_part:
            raise ImpossibleFault(f"{kind.name}: it is about no part of the device; leave the part out")
        if self.part is not None and self.part not in DEVICE_PARTS:
            raise ImpossibleFault(
                f"{excerpt(self.part, 60)!r} is no part of a device; give one of {', '.join(DEVICE_PARTS)}"
            )

    @property
    def definition(self) -> FaultKind:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise ImpossibleFault(f"{excerpt(self.kind, 60)!r} is no kind of fault{_suggestion(self.kind)}")
        return kind

    @property
    def effective_amount(self) -> float | None:
        """The requested amount, or the default of the fault kind. None if the kind has no amount."""
        kind = self.definition
        return self.amount if self.amount is not None else kind.amount.default if kind.amount is not None else None

    @property
    def waits_for_execution(self) -> bool:
        """Whether the fault begins with an execution, as all faults do that last one execution or one process."""
        passing = self.definition.lasts in (FaultDuration.ONE_EXECUTION, FaultDuration.PROCESS)
        return passing or self.after_executions is not None or self.probability is not None


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:60], KINDS, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else "; see neuron-fault kinds"


# Published failures of a large training run: 419 faults of 16,384 accelerators in 54 days (Llama 3, arXiv:2407.21783).
# AWS publishes no failure rate for Trainium.
FAULTS_PER_DEVICE_DAY = 4.7e-4
_DAY_SECONDS = 86_400.0

DEFAULT_FAULT_MIX: Mapping[str, float] = MappingProxyType(
    {
        "hang-compute": 17.5,
        "device-lost": 17.5,
        "hbm-uncorrectable": 12.0,
        "hbm-repairable": 5.0,
        "link-down": 5.0,
        "network-proxy": 5.0,
        "sram-uncorrectable": 5.0,
        "dma-abort": 4.0,
        "execution-unit-lost": 4.0,
        "out-of-bounds": 6.5,
        "queue-overflow": 6.5,
        "hang-collective": 2.0,
        "bit-flip": 1.4,
        "slow-core": 1.4,
    }
)
"""Share of each fault kind in percent, from arXiv:2407.21783.

Omits the 11 % that affect whole hosts (maintenance, host parts). A fleet's plan can add them as `host-lost`.
"""


class InvalidFaultPlan(ValueError):
    """The fault plan is invalid. The one-line message states the value, the reason and a valid alternative."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Parameters from which `schedule_faults` draws random faults.

    `mean_seconds_between_faults` is per host. None derives it from FAULTS_PER_DEVICE_DAY and the host's device count.
    Each fault ends after `for_seconds`. None means the duration of its fault kind.
    """

    seed: int = 0
    duration_seconds: float = 3600.0
    mean_seconds_between_faults: float | None = None
    for_seconds: float | None = None
    mix: Mapping[str, float] = field(default_factory=lambda: DEFAULT_FAULT_MIX)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of a plan: the index of its host, and the request to send to that host's daemon."""

    host_index: int
    request: FaultRequest

    @property
    def at_seconds(self) -> float:
        """Seconds from the start of the plan to the start of the fault."""
        return self.request.after_seconds or 0.0


def schedule_faults(plan: FaultPlan, device_counts: Sequence[int]) -> tuple[PlannedFault, ...]:
    """Returns the faults of all hosts, sorted by time. Raises InvalidFaultPlan if there are too many.

    `device_counts` has the number of devices of each host. The faults of a host do not depend on the other hosts.
    """
    planned = [each for index, count in enumerate(device_counts) for each in _of_host(plan, index, count)]
    return tuple(sorted(planned, key=lambda each: (each.at_seconds, each.host_index)))


def _of_host(plan: FaultPlan, host_index: int, device_count: int) -> Iterator[PlannedFault]:
    random = Random(f"{plan.seed} {host_index}")  # noqa: S311
    mean_seconds = plan.mean_seconds_between_faults or _DAY_SECONDS / (FAULTS_PER_DEVICE_DAY * device_count)
    kinds, shares = list(plan.mix), list(plan.mix.values())
    at_seconds = random.expovariate(1.0 / mean_seconds)
    count = 0
    while at_seconds < plan.duration_seconds:
        count += 1
        if count > MOST_FAULTS:
            raise InvalidFaultPlan(
                f"more than {MOST_FAULTS} faults on a host; shorten duration_seconds or give them more time"
            )
        kind, device_index = random.choices(kinds, shares)[0], random.randrange(device_count)
        yield PlannedFault(
            host_index,
            FaultRequest(
                kind,
                device_index=None if KINDS[kind].loses_host else device_index,
                after_seconds=round(at_seconds, 3),
                for_seconds=plan.for_seconds,
                seed=random.randrange(2**32),
            ),
        )
        at_seconds += random.expovariate(1.0 / mean_seconds)


def parse_plan(text: str) -> FaultPlan:
    import tomllib  # imported here because the import is slow and only plans need it

    try:
        written = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidFaultPlan(f"it is no TOML: {escape_controls(str(error) or 'nested too deeply')}") from None
    field_names = set(FaultPlan.__slots__)
    for key in written:
        if key not in field_names:
            raise InvalidFaultPlan(f"{_shown(key)} is no key of a plan; there are {', '.join(sorted(field_names))}")
    seed = written.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise InvalidFaultPlan(f"seed: {_shown(seed)} is no seed; give a whole number from 0")
    return FaultPlan(
        seed,
        _seconds(written, "duration_seconds") or FaultPlan().duration_seconds,
        _seconds(written, "mean_seconds_between_faults"),
        _seconds(written, "for_seconds"),
        _parse_mix(written.get("mix")),
    )


def _seconds(written: Mapping[str, object], key: str) -> float | None:
    value = written.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise InvalidFaultPlan(f"{key}: {_shown(value)} is no number of seconds; give more than 0, at most a year")
    return float(value)


def _parse_mix(value: object) -> Mapping[str, float]:
    if value is None:
        return DEFAULT_FAULT_MIX
    if not isinstance(value, dict) or not value:
        raise InvalidFaultPlan("mix: give a table of kinds and their shares, such as mix = { dma-abort = 1 }")
    for kind, share in value.items():
        if kind not in KINDS:
            raise InvalidFaultPlan(f"mix: {_shown(kind)} is no kind of fault; see neuron-fault kinds")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1e9:
            raise InvalidFaultPlan(f"mix.{kind}: {_shown(share)} is no share; give a number above 0")
    return {str(kind): float(share) for kind, share in value.items()}


def _shown(value: object) -> str:
    return error_excerpt(repr(value) if not isinstance(value, str) else value)


FAULT_STATE_TEXTS = {FaultState.WAITING: "waits", FaultState.HOLDS: "holds", FaultState.OVER: "is over"}


def describe_fault(fault: InjectedFault) -> str:
    state = FAULT_STATE_TEXTS[fault.state]
    return f"fault {fault.number}: {fault.kind} {fault_location(fault)}{fault_schedule(fault)}, {state}"


def injected_by(fault: InjectedFault) -> str:
    """Returns the UID and PID that injected the fault as text; "" if unknown."""
    ids = (("UID", fault.injected_by_uid), ("PID", fault.injected_by_pid))
    return ", ".join(f"{name} {number}" for name, number in ids if number is not None)


def fault_location(fault: InjectedFault) -> str:
    if not fault.device_indices:
        return "the host"
    devices = devices_text(fault.device_indices)
    if fault.neuroncore_index is not None:
        return f"NeuronCore {fault.neuroncore_index} of {devices}"
    return devices if fault.pid is None else f"PID {fault.pid} on {devices}"


def fault_schedule(fault: InjectedFault) -> str:
    """Returns the delay, duration and probability of a fault as text, each preceded by a comma."""
    parts = []
    if fault.after_executions:
        parts.append(f"after {fault.after_executions} execution{'' if fault.after_executions == 1 else 's'}")
    if fault.after_seconds:
        parts.append(f"after {fault.after_seconds:g} s")
    if fault.for_seconds is not None:
        parts.append(f"for {fault.for_seconds:g} s")
    if fault.probability < 1:
        parts.append(f"with probability {fault.probability:g}")
    return "".join(f", {part}" for part in parts)
