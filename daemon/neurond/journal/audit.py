"""The audit: who had which cores, what was found, injected and done, a line of JSON each, in the state directory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial

from neurond.journal.accounts import Departure
from neurond.journal.line_file import MOST_LINE_BYTES, LineFile
from neurontools.model import FaultState, Finding, InjectedFault, Process, Snapshot
from neurontools.model.problems import described
from neurontools.util.formats import json_text
from neurontools.util.units import ranges_text

NAME = "audit"
_STATES = {FaultState.WAITING: "fault_waits", FaultState.HOLDS: "fault_holds", FaultState.OVER: "fault_is_over"}
_MOST_CHARACTERS = 500  # of a text


class Audit:
    """Writes what it is told; without a file it keeps nothing. `note` may be called from any thread."""

    def __init__(self, file: LineFile | None = None) -> None:
        self._file = file
        self._attached: dict[tuple[int, float | None], Process] = {}
        self._faults: dict[int, InjectedFault] = {}

    def note(self, event: str, at_unix_seconds: float, fields: Mapping[str, object]) -> None:
        """One line: the moment, the event, and what is to be said of it."""
        if self._file is not None:
            self._file.add(partial(_line, {"at_unix_seconds": round(at_unix_seconds, 6), "event": event, **fields}))

    def findings(self, began: Iterable[Finding], ended: Iterable[Finding], at_unix_seconds: float) -> None:
        """Notes what has begun and what has ended."""
        for event, findings in (("finding_begins", began), ("finding_ends", ended)):
            for finding in findings:
                self.note(event, at_unix_seconds, described(finding))

    def attaches(self, snapshot: Snapshot, departures: Iterable[Departure], at_unix_seconds: float) -> None:
        """Notes who has got cores, and who has them no more; `at_unix_seconds` by the clock that the host shows."""
        if self._file is None:
            return
        now: dict[tuple[int, float | None], Process] = {
            (process.pid, process.attached_at_unix_seconds): process
            for process in snapshot.processes
            if process.attached_at_unix_seconds is not None and process.core_indices and not process.synthetic
        }
        left = {
            (departure.process.pid, departure.process.attached_at_unix_seconds): departure.process
            for departure in departures
            if departure.process.core_indices and not departure.process.synthetic
        }
        for key, process in (now | left).items():
            if key not in self._attached:
                self.note("attached", at_unix_seconds, _who(process))
        for key, process in (self._attached | left).items():
            if key not in now:
                self.note("released", at_unix_seconds, _who(process))
        self._attached = now

    def faults(self, snapshot: Snapshot) -> None:
        """Notes which faults were injected; of each also when it has begun to hold, and has ended."""
        for fault in snapshot.injected_faults:
            self._fault(fault, snapshot.taken_at_unix_seconds)
        self._faults = {fault.number: fault for fault in snapshot.injected_faults}

    def healed(
        self, faults: Iterable[InjectedFault], by_uid: int | None, by_pid: int | None, at_unix_seconds: float
    ) -> None:
        """Notes which faults were taken back, and by whom; also those that no snapshot has shown."""
        for fault in faults:
            self._fault(fault, at_unix_seconds)
            by = {"healed_by_uid": by_uid, "healed_by_pid": by_pid}
            self.note("fault_healed", at_unix_seconds, _what(fault) | by)
            self._faults.pop(fault.number, None)

    def _fault(self, fault: InjectedFault, at_unix_seconds: float) -> None:
        before = self._faults.get(fault.number)
        if before is None:
            self.note("fault_injected", fault.injected_at_unix_seconds, _what(fault))
        if fault.state is not (FaultState.WAITING if before is None else before.state):
            self.note(_STATES[fault.state], at_unix_seconds, _what(fault))

    def profile(self, by_pid: int, by_uid: int, pid: int) -> None:
        """Notes that a process asked for a profile of another now, and was let."""
        self.note("profile_asked_for", time.time(), {"by_pid": by_pid, "by_uid": by_uid, "pid": pid})

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._file is not None:
            self._file.close()


def _who(process: Process) -> dict[str, object]:
    return {
        "pid": process.pid,
        "uid": process.uid,
        "user": process.user,
        "job": None if process.job is None else process.job.name,
        "neuroncores": ranges_text(process.neuroncore_indices),
    }


def _what(fault: InjectedFault) -> dict[str, object]:
    return {
        "number": fault.number,
        "kind": fault.kind,
        "device_indices": list(fault.device_indices),
        "neuroncore_index": fault.neuroncore_index,
        "pid": fault.pid,
        "met_total": fault.met_total,
        "injected_by_uid": fault.injected_by_uid,
        "injected_by_pid": fault.injected_by_pid,
    }


def _line(fields: dict[str, object]) -> bytes:
    cut = {key: value[:_MOST_CHARACTERS] if isinstance(value, str) else value for key, value in fields.items()}
    line = json_text(cut).encode("ascii") + b"\n"
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is too long")
    return line
