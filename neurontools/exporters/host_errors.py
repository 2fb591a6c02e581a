"""Errors of executions on a host, those of processes that have ended among them."""

from __future__ import annotations

from operator import add, attrgetter

from neurontools.exporters.exposition import Definition, Family, Kind, label_text
from neurontools.model import EndedProcess, Process, Snapshot

ERROR_TYPES = ("generic", "numerical", "transient", "model", "runtime", "hardware")
EXECUTION_ERRORS = Definition(
    "neurontools_execution_errors",
    Kind.COUNTER,
    "Errors of executions on the host, by type, those of processes that have ended among them",
)
_read = attrgetter(*(f"{kind}_total" for kind in ERROR_TYPES))
_LABELS = tuple(label_text([("error_type", kind)]) for kind in ERROR_TYPES)
_NONE = (0,) * len(ERROR_TYPES)

_Counts = tuple[int, ...]


class HostErrors:
    """Counts by type, of all processes since it was made.

    A process that fails mostly ends with its error: what it had counted is in what a snapshot tells of those that have
    ended, and stays in the sum. Show it snapshots in order, one a minute at least.
    """

    def __init__(self, counting_since_unix_seconds: float) -> None:
        self._since = counting_since_unix_seconds
        self._by_pid: dict[int, _Counts] = {}  # of those that are there, or ended within the last minute
        self._gone = _NONE

    def observe(self, snapshot: Snapshot) -> None:
        """Takes in what a snapshot tells."""
        told: dict[int, _Counts] = {}
        everybody: list[Process | EndedProcess] = [*snapshot.processes, *snapshot.ended]
        for process in everybody:
            counts = _NONE if process.errors is None else _read(process.errors)
            before = told.get(process.pid) or self._by_pid.get(process.pid, _NONE)
            told[process.pid] = counts if counts == before else tuple(map(max, before, counts))
        for pid, counts in self._by_pid.items():
            if pid not in told:
                self._gone = tuple(map(add, self._gone, counts))
        self._by_pid = told

    def family(self) -> Family:
        """The counts as they are now."""
        totals = self._gone
        for counts in self._by_pid.values():
            totals = tuple(map(add, totals, counts))
        return Family(
            EXECUTION_ERRORS,
            list(zip(_LABELS, totals, strict=True)),
            [(labels, self._since) for labels in _LABELS],
        )
