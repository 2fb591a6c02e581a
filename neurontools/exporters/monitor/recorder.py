"""Makes record after record: keeps what each metric group was last compared with."""

from __future__ import annotations

from neurontools.exporters.monitor.baseline import Baseline
from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.groups import HW_COUNTERS
from neurontools.exporters.monitor.outage import outage_record
from neurontools.exporters.monitor.record import GroupKey, group_periods, record
from neurontools.exporters.monitor.record_types import Record
from neurontools.exporters.monitor.schedule import Schedule
from neurontools.model import Snapshot


class Recorder:
    """The records of one configuration; times are seconds of the clock that the snapshots' taken_at_seconds are of."""

    def __init__(self, configuration: MonitorConfiguration, start_seconds: float) -> None:
        self._configuration = configuration
        self._schedule = Schedule(group_periods(configuration), start_seconds, configuration.period_seconds)
        self._before: dict[GroupKey, Baseline] = {}
        self._last: Snapshot | None = None

    @property
    def next_seconds(self) -> float:
        """When the next record is due."""
        return self._schedule.next_seconds

    @property
    def periods_seconds(self) -> tuple[float, ...]:
        """The periods of the metric groups: how far back the first record looks."""
        return tuple(sorted({seconds for _, seconds in group_periods(self._configuration)}))

    def begin(self, past: Snapshot, period_seconds: float) -> None:
        """Takes a snapshot from before the first record, with which the groups of this period are to be compared."""
        for key, seconds in group_periods(self._configuration):
            if seconds == period_seconds and key.type != HW_COUNTERS:
                self._before[key] = Baseline.first(past)

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of the moment that the next record is for, as nearly as the interval allows.

        The one that the last record was made from is of no other moment.
        """
        taken_at_seconds = snapshot.taken_at_seconds
        if self._last is not None and taken_at_seconds == self._last.taken_at_seconds:
            return False
        return taken_at_seconds >= self.next_seconds - snapshot.interval_seconds / 2

    def make(self, now: Snapshot) -> Record:
        """The record of a snapshot, with the groups that are due.

        What is due later moves along with when snapshots are really taken: a second early or late today would else
        be a second too many or too few in every period.
        """
        late_seconds = now.taken_at_seconds - self.next_seconds
        if abs(late_seconds) <= now.interval_seconds:
            self._schedule.shift(late_seconds)
        # A period shorter than the daemon's interval can't be met.
        due = self._schedule.take(now.taken_at_seconds, now.interval_seconds)
        made = record(now, self._configuration, self._before.get, due.__contains__)
        following: dict[int, Baseline] = {}  # groups of one baseline go on having one
        for key, _ in group_periods(self._configuration):
            if key in due:
                earlier = self._before.get(key)
                if id(earlier) not in following:
                    following[id(earlier)] = earlier.after(now) if earlier else Baseline.first(now)
                self._before[key] = following[id(earlier)]
        self._last = now
        return made

    def make_outage(self, error: str, now_seconds: float) -> Record | None:
        """The record for a moment at which no snapshot could be had; None before there was any."""
        due = self._schedule.take(now_seconds)
        if self._last is None:
            return None
        return outage_record(self._last, self._configuration, error, due.__contains__)
