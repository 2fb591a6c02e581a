"""Makes record after record: keeps what each metric group was last compared with."""

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


class GroupKey(NamedTuple):
    """A metric group of a configuration: of which of its runtime entries, -1 for the host, and its type."""

    selection: int
    type: str


HOST = -1
K8S = GroupKey(-2, "neuron_k8s_info")


def group_periods(configuration: MonitorConfiguration) -> Iterator[tuple[GroupKey, float]]:
    """Every metric group of a configuration with its period in seconds."""
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
    """The record of a snapshot: the groups that are due, each since the baseline that `before` tells for it.

    A group that is not due is left out, so that nobody counts its numbers twice. A process that several runtime
    entries select is listed once; where they have the same group, the first entry counts.
    """
    periods: dict[int, RecordPeriod] = {}

    def period(key: GroupKey) -> RecordPeriod:
        earlier = before(key)
        if id(earlier) not in periods:
            periods[id(earlier)] = RecordPeriod(now, earlier)
        return periods[id(earlier)]

    due = [key for key, _ in group_periods(configuration) if is_due(key)]
    made: Record = {
        "neuron_runtime_data": [
            _runtime_data(process, wanted, configuration)
            for process in now.processes
            if uses_devices(process) and (wanted := _selected(process, configuration, due, period)) is not None
        ],
        "system_data": system_data({key.type: period(key) for key in due if key.selection == HOST}),
        "instance_info": instance_info(now.instance),
        "neuron_hardware_info": neuron_hardware_info(now.instance),
    }
    if K8S in due:
        made["neuron_k8s_info"] = neuron_k8s_info(period(K8S))
    return made


def uses_devices(process: Process) -> bool:
    """Whether it is a runtime and no observer; which cores are its own need not be known."""
    return bool(process.core_indices) or process.runtime_version is not None


def _selected(
    process: Process,
    configuration: MonitorConfiguration,
    due: list[GroupKey],
    period: Callable[[GroupKey], RecordPeriod],
) -> dict[str, RecordPeriod] | None:
    """The groups of a process that are due, with their periods; None when no runtime entry means it."""
    selections = [index for index, selection in enumerate(configuration.runtimes) if selection.selects(process.tag)]
    if not selections:
        return None
    chosen: dict[str, RecordPeriod] = {}
    owner: dict[str, int] = {}
    for index in selections:
        for group in configuration.runtimes[index].metrics:
            owner.setdefault(group.type, index)
    for key in due:
        if owner.get(key.type) == key.selection:
            chosen[key.type] = period(key)
    return chosen


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


_EARLY_SECONDS = 0.002  # due within this is due now: a sleep may end a little early


@dataclass(slots=True)
class _DueTime:
    period_seconds: float
    at_seconds: float


class GroupSchedule:
    """The next time of each key; all are due at the start. Times that were missed are not made up for."""

    def __init__(
        self, periods: Iterable[tuple[object, float]], start_seconds: float, idle_period_seconds: float
    ) -> None:
        """`idle_period_seconds`: how often there is to be a record where there is no key at all."""
        self._due = {key: _DueTime(period_seconds, start_seconds) for key, period_seconds in periods}
        self._idle = _DueTime(idle_period_seconds, start_seconds)

    @property
    def next_seconds(self) -> float:
        """When the next key is due."""
        return min((due.at_seconds for due in self._due.values()), default=self._idle.at_seconds)

    def shift(self, seconds: float) -> None:
        """Puts everything off by so much; less than 0: brings it forward."""
        for due in (*self._due.values(), self._idle):
            due.at_seconds += seconds

    def take(self, now_seconds: float, shortest_seconds: float = 0.0) -> frozenset[object]:
        """The keys that are due now; each is due again a period later, or `shortest_seconds` if that is longer."""
        taken = set()
        for key, due in self._due.items() if self._due else [(None, self._idle)]:
            if due.at_seconds <= now_seconds + _EARLY_SECONDS:
                taken.add(key)
                period_seconds = max(due.period_seconds, shortest_seconds)
                due.at_seconds += period_seconds
                if due.at_seconds <= now_seconds:
                    missed = (now_seconds - due.at_seconds) // period_seconds + 1
                    due.at_seconds += missed * period_seconds
        return frozenset(taken - {None})


def make_outage_record(
    last: Snapshot, configuration: MonitorConfiguration, error: str, is_due: Callable[[GroupKey], bool]
) -> Record:
    """A record without processes whose groups hold nothing but `error`; `last` tells the instance."""
    empty = replace(last, processes=(), devices=(), host=Host())
    made = make_record(empty, configuration, lambda _: None, is_due)
    for group in cast(dict[str, dict[str, object]], made["system_data"]).values():
        group["error"] = error
    return made


class MonitorRecorder:
    """The records of one configuration; times are seconds of the clock that the snapshots' taken_at_seconds are of."""

    def __init__(self, configuration: MonitorConfiguration, start_seconds: float) -> None:
        self._configuration = configuration
        self._schedule = GroupSchedule(group_periods(configuration), start_seconds, configuration.period_seconds)
        self._before: dict[GroupKey, RecordBaseline] = {}
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
                self._before[key] = RecordBaseline.first(past)

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
        made = make_record(now, self._configuration, self._before.get, due.__contains__)
        following: dict[int, RecordBaseline] = {}  # groups of one baseline go on having one
        for key, _ in group_periods(self._configuration):
            if key in due:
                earlier = self._before.get(key)
                if id(earlier) not in following:
                    following[id(earlier)] = earlier.after(now) if earlier else RecordBaseline.first(now)
                self._before[key] = following[id(earlier)]
        self._last = now
        return made

    def make_outage(self, error: str, now_seconds: float) -> Record | None:
        """The record for a moment at which no snapshot could be had; None before there was any."""
        due = self._schedule.take(now_seconds)
        if self._last is None:
            return None
        return make_outage_record(self._last, self._configuration, error, due.__contains__)
