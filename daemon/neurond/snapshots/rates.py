"""Computes rates and ratios from consecutive snapshots.

Rates of reported counters cover the time between two reports of a process. If a process has not reported since the
previous tick, its rates stay the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from neurontools.model import (
    LatencyHistogram,
    LatencyPercentiles,
    NeuronCore,
    Process,
    RecentSteps,
    ServedModel,
    ServedModelRates,
    Snapshot,
    TrainingCounters,
    TrainingRates,
    execution,
)
from neurontools.model.process import STEP_PARTS, WAIT_PART
from neurontools.model.snapshot import counters_continue

_Counters = TypeVar("_Counters")


class RateCalculator:
    """Computes the rates of each snapshot from earlier snapshots. `derive` must get every snapshot, in order."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._processes: dict[int, Process] = {}
        self._shares = RecentReports(_operator_and_model_seconds)
        self._serving = RecentReports(_served_by_name)
        self._steps = RecentStepsByProcess()
        # Processes as of the last reading of their vCPU times, with the time of that reading, by PID.
        self._measured: dict[int, tuple[float, Process]] = {}

    def derive(self, snapshot: Snapshot, *, processes_read: bool) -> Snapshot:
        """Returns the snapshot with its rates. `processes_read` means that the snapshot has newly read vCPU times."""
        before = self._before
        processes = tuple(self._process(process, snapshot, processes_read) for process in snapshot.processes)
        silent = {process.pid for process in processes if not process.reporting}
        if before is None or snapshot.cores is before.cores:
            cores = snapshot.cores
        else:
            earlier = {core.index: core for core in before.cores}  # devices may come and go
            cores = tuple(_core(core, earlier.get(core.index), silent) for core in snapshot.cores)
        derived = replace(snapshot, cores=cores, processes=processes)
        self._before = derived
        self._processes = {process.pid: process for process in processes}
        tables: tuple[dict[int, Any], ...] = self._shares.past, self._serving.past, self._steps.past, self._measured
        for table in tables:
            for ended_pid in table.keys() - self._processes.keys():
                del table[ended_pid]
        return derived

    def _process(self, now: Process, snapshot: Snapshot, processes_read: bool) -> Process:
        before = self._processes.get(now.pid)
        if before is None or before.attached_at_unix_seconds != now.attached_at_unix_seconds:
            self._measured.pop(now.pid, None)
            before = None
        values = self._vcpu_ratios(now, before, snapshot, processes_read)
        values |= _execution_rates(now, before)
        values |= recent_shares(self._shares, now)
        values |= recent_serving(self._serving, now)
        if (steps := self._steps.derive(now)) is not None:
            values["recent_steps"] = steps
        return replace(now, **values) if values else now  # type: ignore[arg-type]

    def _vcpu_ratios(
        self, now: Process, before: Process | None, snapshot: Snapshot, processes_read: bool
    ) -> dict[str, object]:
        if not processes_read:
            if before is None:
                return {}
            return {"vcpu_user_ratio": before.vcpu_user_ratio, "vcpu_system_ratio": before.vcpu_system_ratio}
        earlier = self._measured.get(now.pid)
        self._measured[now.pid] = (snapshot.taken_at_seconds, now)
        if earlier is None:
            return {}
        seconds, then = snapshot.taken_at_seconds - earlier[0], earlier[1]
        return {
            "vcpu_user_ratio": _rate(then.cpu_user_seconds_total, now.cpu_user_seconds_total, seconds),
            "vcpu_system_ratio": _rate(then.cpu_system_seconds_total, now.cpu_system_seconds_total, seconds),
        }


def _core(now: NeuronCore, before: NeuronCore | None, silent: set[int]) -> NeuronCore:
    if before is None or now.owner_pid in silent or before.owner_pid != now.owner_pid:
        return now
    if now.measured_at_seconds is None or before.measured_at_seconds is None:
        return now
    seconds = now.measured_at_seconds - before.measured_at_seconds
    if seconds <= 0:
        return replace(now, utilization_ratio=before.utilization_ratio, flops_per_second=before.flops_per_second)
    busy = _rate(before.busy_seconds_total, now.busy_seconds_total, seconds)
    return replace(
        now,
        utilization_ratio=None if busy is None else min(1.0, busy),
        flops_per_second=_rate(before.flop_total, now.flop_total, seconds),
    )


def _execution_rates(now: Process, before: Process | None) -> dict[str, object]:
    if before is None or not now.reporting or now.measured_at_seconds is None or before.measured_at_seconds is None:
        return {}
    seconds = now.measured_at_seconds - before.measured_at_seconds
    if seconds <= 0:
        names = "executions_per_second", "total_latency", "device_latency", "training_rates"
        return {name: getattr(before, name) for name in names}
    return {
        "executions_per_second": _rate(_executions(before), _executions(now), seconds),
        "total_latency": _percentiles(before.total_latency_histogram, now.total_latency_histogram),
        "device_latency": _percentiles(before.device_latency_histogram, now.device_latency_histogram),
        "training_rates": _training_rates(before, now, seconds),
    }


def _training_rates(before: Process, now: Process, seconds: float) -> TrainingRates | None:
    earlier, later = before.training, now.training
    if earlier is None or later is None:
        return None
    collective = _rate(earlier.collective_seconds_total, later.collective_seconds_total, seconds)
    return TrainingRates(
        **_step_parts(earlier, later, seconds),
        steps_per_second=_rate(earlier.steps_total, later.steps_total, seconds),
        samples_per_second=_rate(earlier.samples_total, later.samples_total, seconds),
        collective_ratio=None if collective is None else min(1.0, collective),
        collective_bytes_per_second=_rate(earlier.collective_bytes_total, later.collective_bytes_total, seconds),
        to_device_bytes_per_second=_rate(earlier.to_device_bytes_total, later.to_device_bytes_total, seconds),
        from_device_bytes_per_second=_rate(earlier.from_device_bytes_total, later.from_device_bytes_total, seconds),
    )


def _step_parts(earlier: TrainingCounters, later: TrainingCounters, seconds: float) -> dict[str, float]:
    """Returns the share of each part of step time, by field name.

    If the process reports host time, the parts are complete, and each share is a fraction of their sum. Otherwise each
    share is a fraction of the time between the two reports, or of the sum of the parts if that is longer.
    """
    grown = {
        part.ratio: growth
        for part in STEP_PARTS
        if (growth := _rate(getattr(earlier, part.counter), getattr(later, part.counter), 1.0)) is not None
    }
    together = sum(grown.values())
    whole = together if "host_ratio" in grown and together else max(seconds, together)
    return {ratio: growth / whole for ratio, growth in grown.items()}


def _percentiles(before: LatencyHistogram, now: LatencyHistogram) -> LatencyPercentiles | None:
    if now is before or now == before:
        return None
    try:
        return execution.latency_percentiles(execution.subtract_histograms(now, before))
    except ValueError:  # the process has reset its counters during this interval
        return None


def _executions(process: Process) -> int | None:
    counters = process.executions
    return None if counters is None else sum(getattr(counters, name) for name in counters.__slots__)


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """Returns a counter's growth per second. None if a value is unknown, if no time has passed, or after a reset."""
    if before is None or now is None or seconds <= 0 or now < before:
        return None
    return (now - before) / seconds


_WINDOW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Moment(Generic[_Counters]):
    process: Process
    measured_at_seconds: float
    counters: _Counters


class RecentReports(Generic[_Counters]):
    """The counters of each process in its reports of the last 10 s. `counters_of` reads them from a process."""

    def __init__(self, counters_of: Callable[[Process], _Counters]) -> None:
        self.past: dict[int, deque[_Moment[_Counters]]] = {}
        self._counters_of = counters_of

    def add(self, now: Process, measured_at_seconds: float) -> tuple[_Counters, float] | None:
        """Adds the latest report of a process. Returns the oldest counters, and the seconds from them to this report.

        Returns None if there is only one report, or if the process no longer reports.
        """
        past = self.past.setdefault(now.pid, deque())
        if past and not counters_continue(past[-1].process, now):
            past.clear()
        if not past or past[-1].measured_at_seconds < measured_at_seconds:
            past.append(_Moment(now, measured_at_seconds, self._counters_of(now)))
        while len(past) > 2 and past[1].measured_at_seconds <= measured_at_seconds - _WINDOW_SECONDS:
            past.popleft()
        seconds = measured_at_seconds - past[0].measured_at_seconds
        return (past[0].counters, seconds) if seconds > 0 and now.reporting else None


def _operator_and_model_seconds(process: Process) -> tuple[dict[str, float], dict[int, float]]:
    """Returns the total seconds of each operator by name, and of each model by its ID."""
    models = {m.model_id: m.busy_seconds_total for m in process.models if m.busy_seconds_total is not None}
    return {operator.name: operator.seconds_total for operator in process.operators}, models


def _served_by_name(process: Process) -> dict[str, ServedModel]:
    return {served.name: served for served in process.served_models}


def recent_shares(reports: RecentReports[tuple[dict[str, float], dict[int, float]]], now: Process) -> dict[str, object]:
    """Returns `operators` and `models` of a process with their recent shares; {} if it reports no times."""
    measured_at = now.measured_at_seconds
    if measured_at is None or not (now.operators or any(m.busy_seconds_total is not None for m in now.models)):
        return {}
    first = reports.add(now, measured_at)
    if first is None:
        return {}
    (operators, models), seconds = first

    def share(before: float | None, total: float) -> float | None:
        return None if before is None or total < before else min(1.0, (total - before) / seconds)

    # A new operator may have been part of "other" in the earlier report, so its earlier value is unknown.
    unnamed = None if operators.keys() - {""} else 0.0
    return {
        "operators": tuple(
            replace(operator, ratio=share(operators.get(operator.name, unnamed), operator.seconds_total))
            for operator in now.operators
        ),
        "models": tuple(
            model
            if model.busy_seconds_total is None
            else replace(model, busy_ratio=share(models.get(model.model_id), model.busy_seconds_total))
            for model in now.models
        ),
    }


def recent_serving(reports: RecentReports[dict[str, ServedModel]], now: Process) -> dict[str, object]:
    """Returns `served_models` of a process with their rates; {} if it serves none, or has not reported lately."""
    measured_at = now.measured_at_seconds
    first = reports.add(now, measured_at) if measured_at is not None and now.served_models else None
    if first is None:
        return {}
    before, seconds = first
    return {
        "served_models": tuple(
            replace(served, rates=served_rates(before.get(served.name, ServedModel(served.name)), served, seconds))
            for served in now.served_models
        )
    }


def served_rates(before: ServedModel, now: ServedModel, seconds: float) -> ServedModelRates:
    """Returns the rates of a served model between two reports that are `seconds` apart."""
    if before.requests_total and before.has_application_requests != now.has_application_requests:
        before = replace(
            now, requests_total=0, queue_wait_seconds_total=0.0, total_latency_histogram=LatencyHistogram()
        )
    calls = now.calls_total - before.calls_total
    requests = now.requests_total - before.requests_total
    waited_seconds = now.queue_wait_seconds_total - before.queue_wait_seconds_total
    return ServedModelRates(
        requests_per_second=_rate(before.requests_total, now.requests_total, seconds),
        calls_per_second=_rate(before.calls_total, now.calls_total, seconds),
        batch_size=(now.samples_total - before.samples_total) / calls if calls > 0 else None,
        queue_wait_seconds=max(0.0, waited_seconds) / requests if requests > 0 else None,
        total_latency=_percentiles(before.total_latency_histogram, now.total_latency_histogram),
        device_latency=_percentiles(before.device_latency_histogram, now.device_latency_histogram),
        tokens_per_second=None
        if now.tokens_total is None
        else _rate(before.tokens_total or 0, now.tokens_total, seconds),
        time_to_first_token=_percentiles(before.first_token_histogram, now.first_token_histogram),
        time_per_output_token=_percentiles(before.output_token_histogram, now.output_token_histogram),
    )


LEAST_STEPS = 6
"""Least number of steps in a span: with fewer steps, chance decides which rank waits."""

_WARM_UP_STEPS = 2  # number of first steps to ignore: they include compilation
_SPANS = 2


@dataclass(slots=True)
class _StepHistory:
    began: Process  # the process as it was when the current span of steps began
    counters: TrainingCounters  # of `began`
    spans: deque[tuple[int, tuple[float, ...]]] = field(default_factory=lambda: deque(maxlen=_SPANS))
    recent: RecentSteps | None = None


class RecentStepsByProcess:
    """Summarizes the latest steps of each rank from its reports. `derive` must get every report, in order."""

    def __init__(self) -> None:
        self.past: dict[int, _StepHistory] = {}

    def derive(self, now: Process) -> RecentSteps | None:
        """Returns a summary of the latest steps. None if they are too few or the process reports no wait times."""
        counters = now.training
        if counters is None or counters.collective_wait_seconds_total is None or counters.steps_total < _WARM_UP_STEPS:
            return None
        past = self.past.get(now.pid)
        if past is None or not counters_continue(past.began, now):
            self.past[now.pid] = _StepHistory(now, counters)
            return None
        steps = counters.steps_total - past.counters.steps_total
        if steps >= LEAST_STEPS:
            past.spans.append((steps, _part_seconds(past.counters, counters)))
            past.began, past.counters = now, counters
            past.recent = _summarize(past.spans)
        return past.recent


def _part_seconds(before: TrainingCounters, now: TrainingCounters) -> tuple[float, ...]:
    """Returns the seconds in each part of step time between two reports."""
    return tuple(
        max(0.0, (getattr(now, part.counter) or 0.0) - (getattr(before, part.counter) or 0.0)) for part in STEP_PARTS
    )


def _summarize(spans: deque[tuple[int, tuple[float, ...]]]) -> RecentSteps | None:
    if len(spans) < _SPANS:
        return None
    steps = sum(count for count, _ in spans)
    waits = [seconds[WAIT_PART] / count for count, seconds in spans]
    parts = zip(*(seconds for _, seconds in spans), strict=True)
    return RecentSteps(steps, tuple(sum(each) / steps for each in parts), min(waits), max(waits))
