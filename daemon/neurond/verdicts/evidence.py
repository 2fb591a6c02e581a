"""The input of the health rules (a snapshot, earlier ones, and thresholds), and hysteresis for their findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Generic, TypeVar

from neurontools.model import (
    Device,
    EccCounters,
    ErrorCounters,
    ExecutionCounters,
    LatencyHistogram,
    NeuronCore,
    Process,
    ServedModel,
    Snapshot,
    StatusCounters,
)
from neurontools.model.execution import subtract_histograms
from neurontools.model.snapshot import counted_since_unix_seconds, counters_continue

NO_ERRORS = ErrorCounters()
NO_EXECUTIONS = ExecutionCounters()
Counters = TypeVar("Counters", ErrorCounters, ExecutionCounters)
Part = TypeVar("Part", Device, NeuronCore)
ProcessIdentity = tuple[int, float | None]
"""PID and start time, because PIDs are reused."""

FAILURE_ACTION = "see the error in the log of the job: its NRT status names the cause"
TIMEOUT_ACTION = "see where the job hangs: an endless execution, or a collective that lacks a rank; then restart it"


@dataclass(frozen=True, slots=True)
class RuleContext:
    """A snapshot, and the state at the beginning of the window (`HealthThresholds.window_seconds` earlier).

    `ended` are the processes that ended in the window. `devices`, `processes` and `cores_before` are from the beginning
    of the window. `processes` has only processes that still run or are in `ended`. `first_seen` has the processes that
    appeared later, as they were in their first snapshot. `recent` has the processes as they were one to two fifths of
    the window ago.
    """

    snapshot: Snapshot
    limits: HealthThresholds
    cores: dict[int, NeuronCore]  # cores of the snapshot, by physical core index
    devices: dict[int, Device] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    cores_before: dict[int, NeuronCore] = field(default_factory=dict)
    first_seen: dict[int, Process] = field(default_factory=dict)
    recent: dict[int, Process] = field(default_factory=dict)
    ended: tuple[Process, ...] = ()

    def counters_before(self, process: Process) -> tuple[ErrorCounters | None, ExecutionCounters | None]:
        """Returns a process's errors and executions at the beginning of the window; None if unknown.

        For a process that started later, all counters are 0.
        """
        before = self.processes.get(process.pid)
        since = counted_since_unix_seconds(process, self.snapshot)
        if since is None:  # the driver counts since the process was first seen
            is_younger = before is None
        else:
            is_younger = self.snapshot.taken_at_unix_seconds - since <= self.limits.window_seconds
            before = before or self.first_seen.get(process.pid)
        if is_younger:
            return NO_ERRORS, NO_EXECUTIONS
        return (None, None) if before is None else (before.errors, before.executions)

    def earlier(self, process: Process) -> tuple[Process, ...]:
        """Returns the process as it was in `recent` and at the beginning of the window, as far as it is known.

        The shorter period notices a change earlier. The longer one serves processes with few executions.
        """
        found = (self.recent.get(process.pid), self.processes.get(process.pid))
        return tuple(each for each in found if each is not None)


def has_fallen(
    before: EccCounters | StatusCounters | None, now: EccCounters | StatusCounters | None, *, none_is_zero: bool
) -> bool:
    """Returns whether a counter of the driver fell: the driver was reloaded, or an injected fault was healed.

    If `none_is_zero`, a counter of None is 0, as on a simulated host without faults. Otherwise None is unknown.
    """
    for name in () if before is None or before is now else type(before).__slots__:
        old, new = getattr(before, name), getattr(now, name, None)
        if old and (none_is_zero if new is None else new < old):
            return True
    return False


class CounterRestarts(Generic[Part]):
    """The cores or devices whose driver counters fell, each as it was right after that. Their counters count from then.

    Call `update` with the parts of every snapshot, in order. `counters_of` returns the counters of a part.
    """

    def __init__(self, counters_of: Callable[[Part], EccCounters | StatusCounters | None]) -> None:
        self._counters_of: Callable[[Part], EccCounters | StatusCounters | None] = counters_of
        self._last: dict[int, Part] = {}
        self._restarted: dict[int, tuple[float, Part]] = {}

    def update(self, parts: Iterable[Part], at_seconds: float, *, none_is_zero: bool) -> None:
        last, self._last = self._last, {part.index: part for part in parts}
        for index, part in self._last.items():
            before = last.get(index, part)
            if has_fallen(self._counters_of(before), self._counters_of(part), none_is_zero=none_is_zero):
                self._restarted[index] = at_seconds, part

    def since(self, seconds: float) -> dict[int, Part]:
        """Returns the parts whose counters fell at this time or later (CLOCK_MONOTONIC), and forgets all others."""
        self._restarted = {index: each for index, each in self._restarted.items() if each[0] >= seconds}
        return {index: part for index, (_, part) in self._restarted.items()}


def build_rule_context(
    snapshot: Snapshot, past: Sequence[Snapshot], limits: HealthThresholds, ended: Sequence[Process] = ()
) -> RuleContext:
    """Builds the context of the rules. `past` are the earlier snapshots of the window, oldest first."""
    cores = {core.index: core for core in snapshot.cores}
    past = [each for each in past if each.sequence != snapshot.sequence]
    now = {process.pid: process for process in snapshot.processes}
    ended = tuple(process for process in ended if process.pid not in now)
    if not past:
        return RuleContext(snapshot, limits, cores, ended=ended)
    earlier = past[0]
    now.update((process.pid, process) for process in ended)
    processes = _continuing(earlier, now)
    unknown = {pid: process for pid, process in now.items() if pid not in processes}
    return RuleContext(
        snapshot,
        limits,
        cores,
        {device.index: device for device in earlier.devices},
        processes,
        {core.index: core for core in earlier.cores},
        {pid: process for each in reversed(past[1:]) for pid, process in _continuing(each, unknown).items()}
        if unknown
        else {},
        _continuing(past[-2], now) if len(past) > 2 else processes,
        ended,
    )


def _continuing(earlier: Snapshot, now: dict[int, Process]) -> dict[int, Process]:
    """Returns the processes of an earlier snapshot whose counters have not restarted since."""
    return {
        process.pid: process
        for process in earlier.processes
        if process.pid in now and counters_continue(process, now[process.pid])
    }


def process_identity(process: Process) -> ProcessIdentity:
    return process.pid, process.attached_at_unix_seconds or process.started_at_unix_seconds


class HealedProcesses:
    """The processes that met injected faults which were healed. Their counters count from the healing on."""

    def __init__(self) -> None:
        self._healed_at_seconds: dict[ProcessIdentity, float] = {}
        self._corrupted: set[ProcessIdentity] = set()
        self._baselines: dict[ProcessIdentity, Process] = {}  # the first report of each process after the healing

    @property
    def corrupted_pids(self) -> frozenset[int]:
        """The processes that may still hold wrong values of a healed fault."""
        return frozenset(pid for pid, _ in self._corrupted)

    def add(self, healed: Mapping[ProcessIdentity, bool], at_seconds: float) -> None:
        """Adds processes, each with whether a fault corrupted its results."""
        for identity, is_corrupted in healed.items():
            self._healed_at_seconds[identity] = at_seconds
            self._baselines.pop(identity, None)
            if is_corrupted:
                self._corrupted.add(identity)

    def forget_others(self, processes: Iterable[Process]) -> None:
        if self._healed_at_seconds:
            known = {process_identity(process) for process in processes}
            for identity in self._healed_at_seconds.keys() - known:
                del self._healed_at_seconds[identity]
                self._corrupted.discard(identity)
                self._baselines.pop(identity, None)

    def count_since_healing(self, process: Process) -> Process:
        """Returns a process with its errors, executions and latencies since the healing; None or empty if unknown."""
        identity = process_identity(process)
        healed_at = self._healed_at_seconds.get(identity)
        if healed_at is None:
            return process
        start = self._baselines.get(identity)
        if start is None and process.measured_at_seconds is not None and process.measured_at_seconds >= healed_at:
            start = self._baselines[identity] = process
        try:
            latencies = LatencyHistogram()
            served_models: tuple[ServedModel, ...] = ()
            if start is not None:
                latencies = subtract_histograms(process.device_latency_histogram, start.device_latency_histogram)
                served_models = _served_since(start, process)
        except ValueError:  # the process restarted its counters
            return process
        return replace(
            process,
            counted_since_seconds=healed_at,
            errors=_grown(None if start is None else start.errors, process.errors),
            executions=_grown(None if start is None else start.executions, process.executions),
            device_latency_histogram=latencies,
            served_models=served_models,
        )


def _served_since(start: Process, process: Process) -> tuple[ServedModel, ...]:
    """Returns the served models of a process with the request latencies since `start`."""
    before = {served.name: served.total_latency_histogram for served in start.served_models}
    return tuple(
        replace(
            served,
            total_latency_histogram=subtract_histograms(
                served.total_latency_histogram, before.get(served.name, LatencyHistogram())
            ),
        )
        for served in process.served_models
    )


def _grown(before: Counters | None, now: Counters | None) -> Counters | None:
    if before is None or now is None:
        return None
    return type(now)(*(growth(getattr(before, each.name), getattr(now, each.name)) for each in fields(now)))


def growth(before: int | None, now: int | None) -> int:
    """Returns the growth of a counter; 0 if either value is unknown or the counter restarted."""
    return max(0, now - before) if before is not None and now is not None else 0


def count_text(count: int, what: str) -> str:
    """Formats a count with its noun: "1 error", "3 errors"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def at_least_text(count: int, what: str) -> str:
    """Formats a growing count so that the text seldom changes: "at least 20 errors"."""
    if count < 10:
        return count_text(count, what)
    power = 10 ** (len(str(count)) - 1)
    return f"at least {max(step * power for step in (1, 2, 5) if step * power <= count):,} {what}s"


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """The thresholds of the health rules, from [health] in the configuration file. None disables a rule."""

    window_seconds: float = 300.0  # period in which errors and growth are counted
    idle_seconds: float | None = 300.0  # a held core is idle after this time without a finished execution
    stuck_seconds: float | None = 60.0  # an execution is stuck if it has not finished after this time
    memory_used_ratio: float | None = 0.95  # limit of the used share of an HBM stack's memory
    ecc_corrected_events: int | None = 10  # limit of corrected ECC events in the window
    numerical_errors: int | None = 1  # limit of numerical errors in the window
    hardware_errors: int | None = 1  # a process with this many hardware errors in the window has a finding
    failed_executions: int | None = 1  # limit of executions in the window that failed for another reason
    latency_growth_ratio: float | None = 1.5  # limit of the ratio between the median latencies in and before the window
    latency_executions: int = 20  # executions that are needed in the window, and before it, to compare latencies
    silent_seconds: float | None = 15.0  # a process is silent after this time without a report


Key = TypeVar("Key", bound=Hashable)


class HysteresisLevel(Enum):
    """How a measurement compares with its limit: over the limit, clearly better, or in between."""

    OVER = auto()
    BETWEEN = auto()
    BETTER = auto()


@dataclass(slots=True)
class _State:
    holds_since_seconds: float | None = None  # when the condition began to hold; None: it does not hold
    otherwise_since_seconds: float | None = None  # since when the measurements contradict the state; None: they agree


class Hysteresis(Generic[Key]):
    """Decides whether a condition holds, without reacting to single measurements.

    The condition begins when all measurements of some time are over the limit. It ends when all of them are clearly
    better. Call `holds_since` with every measurement, in order, with times of a clock that is never set.
    """

    def __init__(self) -> None:
        self._states: dict[Key, _State] = {}

    def holds_since(
        self,
        key: Key,
        level: HysteresisLevel,
        now_seconds: float,
        *,
        begins_after_seconds: float,
        ends_after_seconds: float,
    ) -> float | None:
        """Handles a measurement. Returns since when the condition of the key holds, or None if it does not."""
        state = self._states.get(key)
        if state is None:
            if level is not HysteresisLevel.OVER:
                return None
            state = self._states[key] = _State()
        holds = state.holds_since_seconds is not None
        if level is not (HysteresisLevel.BETTER if holds else HysteresisLevel.OVER):
            state.otherwise_since_seconds = None
        elif state.otherwise_since_seconds is None:
            state.otherwise_since_seconds = now_seconds
        since = state.otherwise_since_seconds
        if since is not None and now_seconds - since >= (ends_after_seconds if holds else begins_after_seconds):
            state.holds_since_seconds = None if holds else since
            state.otherwise_since_seconds = None
        if state.holds_since_seconds is None and state.otherwise_since_seconds is None:
            del self._states[key]
        return state.holds_since_seconds

    def is_known(self, key: Key) -> bool:
        """Whether the key has state. A key without state ignores measurements that are not over the limit."""
        return key in self._states

    def forget_others(self, keys: Collection[Key]) -> None:
        for key in self._states.keys() - set(keys):
            del self._states[key]
