"""Makes the records of neuron-monitor: schedules the metric groups, and keeps the baseline of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.metric_groups import (
    instance_info,
    neuron_hardware_info,
    neuron_k8s_info,
    runtime_report,
    system_data,
)
from neurontools.exporters.monitor.period import RecordBaseline, RecordPeriod
from neurontools.exporters.monitor.record_types import HW_COUNTERS, Record, RuntimeData
from neurontools.model import Host, Process, Snapshot

HOST = -1
_EARLY_SECONDS = 0.002  # a record may be this much early, because a sleep may end early


class GroupKey(NamedTuple):
    """Identifies a configured metric group: index of its runtime entry (host: -1, neuron_k8s_info: -2), and type."""

    selection: int
    type: str


K8S = GroupKey(-2, "neuron_k8s_info")


def group_periods(configuration: MonitorConfiguration) -> Iterator[tuple[GroupKey, float]]:
    for index, selection in enumerate(configuration.runtimes):
        for group in selection.metrics:
            yield GroupKey(index, group.type), group.period_seconds
    for group in configuration.system_metrics:
        yield GroupKey(HOST, group.type), group.period_seconds
    if configuration.k8s_info_period_seconds is not None:
        yield K8S, configuration.k8s_info_period_seconds


def make_record(
    now: Snapshot,
    configuration: MonitorConfiguration,
    before: Callable[[GroupKey], RecordBaseline | None],
    is_due: Callable[[GroupKey], bool] = lambda _: True,
) -> Record:
    """Makes the record of a snapshot from the metric groups that are due.

    `before` returns the baseline of a group, at which its period begins. Omits groups that are not due, so that readers
    don't count their numbers twice. Lists a process once, even if several runtime entries select it. If several of
    these entries have a group, the first entry determines its period.
    """
    periods: dict[int, RecordPeriod] = {}

    def period(key: GroupKey) -> RecordPeriod:
        earlier = before(key)
        if id(earlier) not in periods:
            periods[id(earlier)] = RecordPeriod(now, earlier)
        return periods[id(earlier)]

    due = [key for key, _ in group_periods(configuration) if is_due(key)]
    record: Record = {
        "neuron_runtime_data": [
            _runtime_data(process, report, configuration)
            for process in now.processes
            if uses_devices(process) and (report := _selected(process, configuration, due, period)) is not None
        ],
        "system_data": system_data({key.type: period(key) for key in due if key.selection == HOST}),
        "instance_info": instance_info(now.instance),
        "neuron_hardware_info": neuron_hardware_info(now.instance),
    }
    if K8S in due:
        record["neuron_k8s_info"] = neuron_k8s_info(period(K8S))
    return record


def uses_devices(process: Process) -> bool:
    """Whether a process uses the Neuron runtime, even if its cores are unknown."""
    return bool(process.core_indices) or process.runtime_version is not None


def _selected(
    process: Process,
    configuration: MonitorConfiguration,
    due: list[GroupKey],
    period: Callable[[GroupKey], RecordPeriod],
) -> dict[str, RecordPeriod] | None:
    """Returns the due groups of a process with their periods; None if no runtime entry selects the process."""
    selections = [index for index, selection in enumerate(configuration.runtimes) if selection.selects(process.tag)]
    if not selections:
        return None
    owner: dict[str, int] = {}
    for index in selections:
        for group in configuration.runtimes[index].metrics:
            owner.setdefault(group.type, index)
    return {key.type: period(key) for key in due if owner.get(key.type) == key.selection}


def _runtime_data(
    process: Process, periods: dict[str, RecordPeriod], configuration: MonitorConfiguration
) -> RuntimeData:
    return {
        "pid": process.pid,
        "address": "",
        "neuron_runtime_tag": process.tag,
        "error": "",
        "report": runtime_report(process, periods, lists_held_cores_only=configuration.lists_held_cores_only),
    }


@dataclass(slots=True)
class _DueTime:
    period_seconds: float
    at_seconds: float


class GroupSchedule:
    """Schedules keys, such as metric groups, by their periods. All are due at the start. Missed times are skipped."""

    def __init__(
        self, periods: Iterable[tuple[object, float]], start_seconds: float, idle_period_seconds: float
    ) -> None:
        """`idle_period_seconds` is the period of records if there are no keys."""
        self._due = {key: _DueTime(period_seconds, start_seconds) for key, period_seconds in periods}
        self._idle = _DueTime(idle_period_seconds, start_seconds)

    @property
    def next_seconds(self) -> float:
        return min((due.at_seconds for due in self._due.values()), default=self._idle.at_seconds)

    def shift(self, seconds: float) -> None:
        for due in (*self._due.values(), self._idle):
            due.at_seconds += seconds

    def collect_due(self, now_seconds: float, shortest_seconds: float = 0.0) -> frozenset[object]:
        """Returns the due keys, and schedules each again after its period, or `shortest_seconds` if that is longer."""
        keys = set()
        for key, due in self._due.items() if self._due else [(None, self._idle)]:
            if due.at_seconds <= now_seconds + _EARLY_SECONDS:
                keys.add(key)
                period_seconds = max(due.period_seconds, shortest_seconds)
                due.at_seconds += period_seconds
                if due.at_seconds <= now_seconds:
                    missed = (now_seconds - due.at_seconds) // period_seconds + 1
                    due.at_seconds += missed * period_seconds
        return frozenset(keys - {None})


class MonitorRecorder:
    """Makes the records of one configuration. All times are on the clock of the snapshots' `taken_at_seconds`."""

    def __init__(self, configuration: MonitorConfiguration, start_seconds: float) -> None:
        self._configuration = configuration
        self._schedule = GroupSchedule(group_periods(configuration), start_seconds, configuration.period_seconds)
        self._before: dict[GroupKey, RecordBaseline] = {}
        self._last: Snapshot | None = None

    @property
    def next_seconds(self) -> float:
        return self._schedule.next_seconds

    @property
    def periods_seconds(self) -> tuple[float, ...]:
        """The different periods of the metric groups, in seconds, ascending."""
        return tuple(sorted({seconds for _, seconds in group_periods(self._configuration)}))

    def begin(self, past: Snapshot, period_seconds: float) -> None:
        """Sets an earlier snapshot as the first baseline of the groups with this period."""
        for key, seconds in group_periods(self._configuration):
            if seconds == period_seconds and key.type != HW_COUNTERS:
                self._before[key] = RecordBaseline.initial(past)

    def accepts(self, snapshot: Snapshot) -> bool:
        """Whether the next record can use a snapshot, which must be new and at most half an interval early."""
        taken_at_seconds = snapshot.taken_at_seconds
        if self._last is not None and taken_at_seconds == self._last.taken_at_seconds:
            return False
        return taken_at_seconds >= self.next_seconds - snapshot.interval_seconds / 2

    def next_record(self, now: Snapshot) -> Record:
        """Makes the record of a snapshot, with the due groups.

        Shifts the schedule to the actual time of the snapshot. Otherwise one early or late snapshot would lengthen or
        shorten every later period.
        """
        late_seconds = now.taken_at_seconds - self.next_seconds
        if abs(late_seconds) <= now.interval_seconds:
            self._schedule.shift(late_seconds)
        # A period shorter than the daemon's interval can't be met.
        due = self._schedule.collect_due(now.taken_at_seconds, now.interval_seconds)
        record = make_record(now, self._configuration, self._before.get, due.__contains__)
        following: dict[int, RecordBaseline] = {}  # groups that share a baseline get the same new baseline
        for key, _ in group_periods(self._configuration):
            if key in due:
                earlier = self._before.get(key)
                if id(earlier) not in following:
                    following[id(earlier)] = earlier.next(now) if earlier else RecordBaseline.initial(now)
                self._before[key] = following[id(earlier)]
        self._last = now
        return record

    def make_outage(self, error: str, now_seconds: float) -> Record | None:
        """Makes the record for a time without a snapshot; returns None before the first snapshot.

        The record has no processes, and its groups have only `error`. Its `instance_info` is from the latest snapshot.
        """
        due = self._schedule.collect_due(now_seconds)
        if self._last is None:
            return None
        empty = replace(self._last, processes=(), devices=(), host=Host())
        record = make_record(empty, self._configuration, lambda _: None, due.__contains__)
        for group in cast(dict[str, dict[str, object]], record["system_data"]).values():
            group["error"] = error
        return record
