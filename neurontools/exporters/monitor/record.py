"""A record: what neuron-monitor says at one moment, from snapshots and a configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from neurontools.exporters.monitor.baseline import Baseline
from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.k8s_info import neuron_k8s_info
from neurontools.exporters.monitor.period import Period
from neurontools.exporters.monitor.record_types import Record, RuntimeData
from neurontools.exporters.monitor.runtime_groups import runtime_report
from neurontools.exporters.monitor.system_groups import instance_info, neuron_hardware_info, system_data
from neurontools.model import Process, Snapshot


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


def record(
    now: Snapshot,
    configuration: MonitorConfiguration,
    before: Callable[[GroupKey], Baseline | None],
    is_due: Callable[[GroupKey], bool] = lambda _: True,
) -> Record:
    """The record of a snapshot: the groups that are due, each since the baseline that `before` tells for it.

    A group that is not due is left out, so that nobody counts its numbers twice. A process that several runtime
    entries select is listed once; where they have the same group, the first entry counts.
    """
    periods: dict[int, Period] = {}

    def period(key: GroupKey) -> Period:
        earlier = before(key)
        if id(earlier) not in periods:
            periods[id(earlier)] = Period(now, earlier)
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
    process: Process, configuration: MonitorConfiguration, due: list[GroupKey], period: Callable[[GroupKey], Period]
) -> dict[str, Period] | None:
    """The groups of a process that are due, with their periods; None when no runtime entry means it."""
    selections = [index for index, selection in enumerate(configuration.runtimes) if selection.selects(process.tag)]
    if not selections:
        return None
    chosen: dict[str, Period] = {}
    owner: dict[str, int] = {}
    for index in selections:
        for group in configuration.runtimes[index].metrics:
            owner.setdefault(group.type, index)
    for key in due:
        if owner.get(key.type) == key.selection:
            chosen[key.type] = period(key)
    return chosen


def _runtime_data(process: Process, periods: dict[str, Period], configuration: MonitorConfiguration) -> RuntimeData:
    return {
        "pid": process.pid,
        "address": "",
        "neuron_runtime_tag": process.tag,
        "error": "",
        "report": runtime_report(process, periods, lists_held_cores_only=configuration.lists_held_cores_only),
    }
