"""What rules judge by: a snapshot, and what of it was already there when the window began."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from neurontools.model import Device, ErrorCounters, NeuronCore, Process, Snapshot
from neurontools.model.counting import continues, counted_since_unix_seconds

NO_ERRORS = ErrorCounters()
ProcessIdentity = tuple[int, float | None]
"""A process, and not the next one with its PID."""


@dataclass(frozen=True, slots=True)
class RuleContext:
    """One moment with its past; `devices`, `processes` and `cores_before` are those of the past, still the same.

    `met` are the processes that the past has not, as they were when they were first seen after it.
    """

    snapshot: Snapshot
    limits: HealthThresholds
    cores: dict[int, NeuronCore]  # of now, physical
    devices: dict[int, Device] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    cores_before: dict[int, NeuronCore] = field(default_factory=dict)
    met: dict[int, Process] = field(default_factory=dict)

    def errors_before(self, process: Process) -> ErrorCounters | None:
        """The errors that a process had when the window began: none where it began to count later; None: not known."""
        before = self.processes.get(process.pid)
        since = counted_since_unix_seconds(process, self.snapshot)
        if since is None:  # the driver counts, and the process is credited with that from when it was first seen
            return NO_ERRORS if before is None else before.errors
        if self.snapshot.taken_at_unix_seconds - since <= self.limits.window_seconds:
            return NO_ERRORS
        before = before or self.met.get(process.pid)
        return None if before is None else before.errors


def build_rule_context(snapshot: Snapshot, past: Sequence[Snapshot], limits: HealthThresholds) -> RuleContext:
    """What is to be judged, with earlier snapshots, oldest first: the first is of when the window began, or later."""
    cores = {core.index: core for core in snapshot.cores}
    past = [each for each in past if each.sequence != snapshot.sequence]
    if not past:
        return RuleContext(snapshot, limits, cores)
    earlier = past[0]
    now = {process.pid: process for process in snapshot.processes}
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
    )


def _continuing(earlier: Snapshot, now: dict[int, Process]) -> dict[int, Process]:
    """Those of an earlier snapshot from whose counters these go on."""
    return {
        process.pid: process
        for process in earlier.processes
        if process.pid in now and continues(process, now[process.pid])
    }


def process_identity(process: Process) -> ProcessIdentity:
    """Which process it is."""
    return process.pid, process.attached_at_unix_seconds or process.started_at_unix_seconds


def growth(before: int | None, now: int | None) -> int:
    """By how much a counter grew; 0 where an end is unknown or it began anew."""
    return max(0, now - before) if before is not None and now is not None else 0


def count_text(count: int, what: str) -> str:
    """A number of things: "1 error", "3 errors"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def at_least_text(count: int, what: str) -> str:
    """A number that goes on growing, as a sentence that does not change with every one: "at least 20 errors"."""
    if count < 10:
        return count_text(count, what)
    power = 10 ** (len(str(count)) - 1)
    return f"at least {max(step * power for step in (1, 2, 5) if step * power <= count):,} {what}s"


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """The limits of the rules, [health] in the configuration file; None switches a check off."""

    window_seconds: float = 300.0  # over which growth is judged
    idle_seconds: float | None = 300.0  # a core is held and has finished nothing for so long
    stuck_seconds: float | None = 60.0  # an execution has been in flight for so long
    memory_used_ratio: float | None = 0.95  # of an HBM stack
    ecc_corrected_events: int | None = 10  # corrected ECC events in the window
    numerical_errors: int | None = 1  # numerical errors in the window
    hardware_errors: int | None = 1  # hardware errors of executions in the window
    latency_growth_ratio: float | None = 1.5  # median of the window against that of the time before it
    latency_executions: int = 20  # fewer than these on either side say nothing about latency
    silent_seconds: float | None = 30.0  # a process that reported has not done so for so long


Key = TypeVar("Key", bound=Hashable)


class HysteresisLevel(Enum):
    """Where something is that was measured: over its limit, clearly better, or between the two."""

    OVER = auto()
    BETWEEN = auto()
    BETTER = auto()


@dataclass(slots=True)
class _State:
    holds_since_seconds: float | None = None  # from when on it was over the limit; None: it does not hold
    otherwise_since_seconds: float | None = None  # since when everything measured says the contrary


class Hysteresis(Generic[Key]):
    """Something holds once it has been over its limit for a while, until it has been clearly better for a while.

    Show it every measurement, in order; times are by a clock that nobody sets.
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
        """Since when it holds, with this measurement; None where it does not."""
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
        """Whether it holds, or is over its limit: of others only what is over it has to be shown."""
        return key in self._states

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all others."""
        for key in self._states.keys() - set(keys):
            del self._states[key]
