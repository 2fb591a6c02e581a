"""A Unix clock that is never set, and the conversion of its times to the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from neurontools.model import EndedProcess, Finding, Health, InjectedFault, LoadedModel, NeuronCore, Process, Snapshot

_TOLERANCE_SECONDS = 0.05  # a clock that is off by less was not set: the two run alike
_ATTEMPTS = 5
_PROMPT_SECONDS = 0.001


class SteadyClock:
    """Unix time from the host's clock at the start, continued by CLOCK_MONOTONIC.

    The daemon keeps all times by this clock, so ages stay right when the host's clock is set. `moved_seconds` is the
    difference to the host's clock now.
    """

    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self._unix_clock = unix_clock
        self._moved_seconds = 0.0
        self._offset_seconds = self._offset()

    def at(self, monotonic_seconds: float) -> float:
        """Unix time at a moment of CLOCK_MONOTONIC."""
        return monotonic_seconds + self._offset_seconds

    def now(self) -> float:
        """Unix time now."""
        return self.at(time.monotonic())

    def moved_seconds(self) -> float:
        """How far the host's clock has been set since the start; negative when it was set back."""
        moved_seconds = self._offset() - self._offset_seconds
        if abs(moved_seconds - self._moved_seconds) > _TOLERANCE_SECONDS:
            self._moved_seconds = moved_seconds
        return self._moved_seconds

    def _offset(self) -> float:
        """Host clock minus CLOCK_MONOTONIC. Repeated when the thread was interrupted between the two."""
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
    """Shifts all times of a snapshot, so that ages stay the same. Returns the snapshot itself for 0 seconds.

    Times from the driver are by the host's clock already and stay.
    """
    if not moved_seconds:
        return snapshot

    def moved(at_unix_seconds: float | None) -> float | None:
        return _moved(at_unix_seconds, moved_seconds)

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

    def health(judged: Health) -> Health:
        return replace(judged, findings=tuple(map(finding, judged.findings)))

    return replace(
        snapshot,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds,
        cores=tuple(map(core, snapshot.cores)),
        processes=tuple(map(process, snapshot.processes)),
        health=None if snapshot.health is None else health(snapshot.health),
        injected_faults=tuple(fault_by_wall_clock(fault, moved_seconds) for fault in snapshot.injected_faults),
    )


def fault_by_wall_clock(fault: InjectedFault, moved_seconds: float) -> InjectedFault:
    """Shifts the times of an injected fault."""
    return replace(
        fault,
        injected_at_unix_seconds=max(0.0, fault.injected_at_unix_seconds + moved_seconds),
        began_at_unix_seconds=_moved(fault.began_at_unix_seconds, moved_seconds),
        ended_at_unix_seconds=_moved(fault.ended_at_unix_seconds, moved_seconds),
    )


def ended_by_wall_clock(ended: EndedProcess, moved_seconds: float) -> EndedProcess:
    """Shifts the times of an ended process. In the log they stay as the host's clock showed them."""
    if not moved_seconds:
        return ended
    return replace(
        ended,
        began_at_unix_seconds=max(0.0, ended.began_at_unix_seconds + moved_seconds),
        ended_at_unix_seconds=max(0.0, ended.ended_at_unix_seconds + moved_seconds),
    )


def _moved(at_unix_seconds: float | None, moved_seconds: float) -> float | None:
    return None if at_unix_seconds is None else max(0.0, at_unix_seconds + moved_seconds)
