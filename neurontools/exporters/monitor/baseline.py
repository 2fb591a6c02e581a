"""What the next record of a metric group is compared with, also across a restart of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neurontools.model import Process, Snapshot
from neurontools.model.counting import CountKey, count_key

LONGEST_AWAY_SECONDS = 600.0
"""A process that has not told anything for so long is not waited for any more."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The snapshot of the record before, and since when records are made.

    `away` has processes as they were last seen, which a daemon that was restarted since has not seen yet: they attach
    anew within seconds, and what they did meanwhile belongs into the next record that has them.
    """

    snapshot: Snapshot
    began_seconds: float  # taken_at_seconds of the first snapshot that records were compared with
    away: Mapping[CountKey, Process] = field(default_factory=dict)

    @classmethod
    def first(cls, snapshot: Snapshot) -> Baseline:
        """The baseline that a series of records begins with."""
        return cls(snapshot, snapshot.taken_at_seconds)

    def after(self, now: Snapshot) -> Baseline:
        """The baseline that a record of `now` leaves behind."""
        return Baseline(now, self.began_seconds, self._away(now))

    def _away(self, now: Snapshot) -> Mapping[CountKey, Process]:
        away = dict(self.away)
        if now.daemon_pid != self.snapshot.daemon_pid or now.sequence < self.snapshot.sequence:
            away |= {key: process for process in self.snapshot.processes if (key := count_key(process)) is not None}
        if not away:
            return self.away
        present = {count_key(process) for process in now.processes}
        return {
            key: process
            for key, process in away.items()
            if key not in present
            and now.taken_at_seconds - (process.measured_at_seconds or 0.0) <= LONGEST_AWAY_SECONDS
        }
