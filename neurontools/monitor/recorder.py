"""Makes record after record: keeps what each metric group was last compared with."""

from __future__ import annotations

from neurontools.model import Snapshot
from neurontools.monitor.configuration import MonitorConfiguration
from neurontools.monitor.layout import Record
from neurontools.monitor.outage import outage_record
from neurontools.monitor.record import GroupKey, group_periods, record
from neurontools.monitor.schedule import Schedule


class Recorder:
    """The records of one configuration; times are seconds of the clock that the snapshots' taken_at_seconds are of."""

    def __init__(self, configuration: MonitorConfiguration, start_seconds: float) -> None:
        self._configuration = configuration
        self._schedule = Schedule(group_periods(configuration), start_seconds, configuration.period_seconds)
        self._before: dict[GroupKey, Snapshot] = {}
        self._last: Snapshot | None = None

    @property
    def next_seconds(self) -> float:
        """When the next record is due."""
        return self._schedule.next_seconds

    @property
    def longest_period_seconds(self) -> float:
        """The longest period of all groups: how far back the first record looks."""
        periods = [seconds for _, seconds in group_periods(self._configuration)]
        return max(periods, default=self._configuration.period_seconds)

    def begin(self, past: Snapshot) -> None:
        """Takes a snapshot from before the first record, for that record to be compared with."""
        for key, _ in group_periods(self._configuration):
            self._before.setdefault(key, past)

    def make(self, now: Snapshot, now_seconds: float) -> Record:
        """The record of a snapshot, with the groups that are due at `now_seconds`."""
        due = self._schedule.take(now_seconds)
        made = record(now, self._configuration, self._before.get, due.__contains__)
        for key, _ in group_periods(self._configuration):
            if key in due:
                self._before[key] = now
        self._last = now
        return made

    def make_outage(self, error: str, now_seconds: float) -> Record | None:
        """The record for a moment at which no snapshot could be had; None before there was any."""
        due = self._schedule.take(now_seconds)
        if self._last is None:
            return None
        return outage_record(self._last, self._configuration, error, due.__contains__)
