"""A Unix clock that ignores changes of the host's clock, and conversion of its times to the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from neurontools.model import EndedProcess, Finding, InjectedFault, LoadedModel, NeuronCore, Process, Snapshot

Timed = TypeVar("Timed", EndedProcess, Finding, InjectedFault, LoadedModel, NeuronCore, Process)

_TOLERANCE_SECONDS = 0.05  # smaller changes of the difference between two clocks are jitter: no clock was set
_ATTEMPTS = 5
_PROMPT_SECONDS = 0.001


class SteadyClock:
    """A Unix clock that starts with the host's clock and then follows CLOCK_MONOTONIC.

    The daemon stores all times by this clock, so ages stay right when the host's clock is set. `moved_seconds` returns
    the current difference to the host's clock.
    """

    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self._unix_clock = unix_clock
        self._moved_seconds = 0.0
        self._offset_seconds = self._offset()

    def at(self, monotonic_seconds: float) -> float:
        """Converts a CLOCK_MONOTONIC time to Unix time."""
        return monotonic_seconds + self._offset_seconds

    def now(self) -> float:
        return self.at(time.monotonic())

    def moved_seconds(self) -> float:
        """Returns by how many seconds the host's clock was set since the start; negative if it was set back."""
        moved_seconds = self._offset() - self._offset_seconds
        if abs(moved_seconds - self._moved_seconds) > _TOLERANCE_SECONDS:
            self._moved_seconds = moved_seconds
        return self._moved_seconds

    def _offset(self) -> float:
        """Returns the host's clock minus CLOCK_MONOTONIC. Reads both again if a pause separated the two readings."""
        offset_seconds = 0.0
        for _ in range(_ATTEMPTS):
            before = time.monotonic()
            unix_seconds = self._unix_clock()
            passed_seconds = time.monotonic() - before
            offset_seconds = unix_seconds - before
            if passed_seconds <= _PROMPT_SECONDS:
                break
        return offset_seconds


def by_wall_clock(snapshot: Snapshot, moved_seconds: float) -> Snapshot:
    """Converts the times of a snapshot to the host's clock, by adding `moved_seconds`.

    Does not change times from the driver, which are by the host's clock already.
    """
    if not moved_seconds:
        return snapshot

    def process(one: Process) -> Process:
        models = tuple(_moved(model, moved_seconds, "last_execution_at_unix_seconds") for model in one.models)
        return _moved(replace(one, models=models), moved_seconds, "started_at_unix_seconds", "attached_at_unix_seconds")

    health = snapshot.health
    if health is not None:
        moved = (_moved(finding, moved_seconds, "began_at_unix_seconds") for finding in health.findings)
        health = replace(health, findings=tuple(moved))
    executions = "execution_started_at_unix_seconds", "last_execution_at_unix_seconds"
    return replace(
        snapshot,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds,
        cores=tuple(_moved(core, moved_seconds, *executions) for core in snapshot.cores),
        processes=tuple(map(process, snapshot.processes)),
        health=health,
        injected_faults=tuple(fault_by_wall_clock(fault, moved_seconds) for fault in snapshot.injected_faults),
    )


def fault_by_wall_clock(fault: InjectedFault, moved_seconds: float) -> InjectedFault:
    """Returns a copy with the times of an injected fault in the host's clock."""
    return _moved(fault, moved_seconds, "injected_at_unix_seconds", "began_at_unix_seconds", "ended_at_unix_seconds")


def ended_by_wall_clock(ended: EndedProcess, moved_seconds: float) -> EndedProcess:
    """Returns a copy with the times of an ended process in the host's clock."""
    return _moved(ended, moved_seconds, "began_at_unix_seconds", "ended_at_unix_seconds") if moved_seconds else ended


def _moved(one: Timed, moved_seconds: float, *names: str) -> Timed:
    """Returns a copy with `moved_seconds` added to the times `names`. A negative sum becomes 0; None stays None."""
    times: dict[str, Any] = {
        name: max(0.0, value + moved_seconds) for name in names if (value := getattr(one, name)) is not None
    }
    return replace(one, **times) if times else one
