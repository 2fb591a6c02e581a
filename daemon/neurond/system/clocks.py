"""A Unix clock that ignores changes of the host's clock, and conversion of its times to the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from neurontools.model import EndedProcess, Finding, Health, InjectedFault, LoadedModel, NeuronCore, Process, Snapshot

_TOLERANCE_SECONDS = 0.05  # smaller differences are jitter: the clock was not set
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
        """Returns the host's clock minus CLOCK_MONOTONIC. Reads both again if a pause came between the reads."""
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

    def moved(at_unix_seconds: float | None) -> float | None:
        return _shift(at_unix_seconds, moved_seconds)

    def core(one: NeuronCore) -> NeuronCore:
        started, last = one.execution_started_at_unix_seconds, one.last_execution_at_unix_seconds
        if started is None and last is None:
            return one
        return replace(
            one, execution_started_at_unix_seconds=moved(started), last_execution_at_unix_seconds=moved(last)
        )

    def model(one: LoadedModel) -> LoadedModel:
        return replace(one, last_execution_at_unix_seconds=moved(one.last_execution_at_unix_seconds))

    def process(one: Process) -> Process:
        return replace(
            one,
            started_at_unix_seconds=moved(one.started_at_unix_seconds),
            attached_at_unix_seconds=moved(one.attached_at_unix_seconds),
            models=tuple(map(model, one.models)),
        )

    def finding(one: Finding) -> Finding:
        return replace(one, began_at_unix_seconds=max(0.0, one.began_at_unix_seconds + moved_seconds))

    def health(one: Health) -> Health:
        return replace(one, findings=tuple(map(finding, one.findings)))

    return replace(
        snapshot,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds,
        cores=tuple(map(core, snapshot.cores)),
        processes=tuple(map(process, snapshot.processes)),
        health=None if snapshot.health is None else health(snapshot.health),
        injected_faults=tuple(fault_by_wall_clock(fault, moved_seconds) for fault in snapshot.injected_faults),
    )


def fault_by_wall_clock(fault: InjectedFault, moved_seconds: float) -> InjectedFault:
    """Converts the times of an injected fault to the host's clock."""
    return replace(
        fault,
        injected_at_unix_seconds=max(0.0, fault.injected_at_unix_seconds + moved_seconds),
        began_at_unix_seconds=_shift(fault.began_at_unix_seconds, moved_seconds),
        ended_at_unix_seconds=_shift(fault.ended_at_unix_seconds, moved_seconds),
    )


def ended_by_wall_clock(ended: EndedProcess, moved_seconds: float) -> EndedProcess:
    """Converts the times of an ended process to the host's clock. Does not change the log of ended processes."""
    if not moved_seconds:
        return ended
    return replace(
        ended,
        began_at_unix_seconds=max(0.0, ended.began_at_unix_seconds + moved_seconds),
        ended_at_unix_seconds=max(0.0, ended.ended_at_unix_seconds + moved_seconds),
    )


def _shift(at_unix_seconds: float | None, moved_seconds: float) -> float | None:
    return None if at_unix_seconds is None else max(0.0, at_unix_seconds + moved_seconds)
