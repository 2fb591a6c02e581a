"""Rates and ratios: derived once, here, from two snapshots.

What a process reported is compared between two of its own reports, by its own clock; a tick that saw no new report
carries the rate on. Before the second report a rate is unknown.
"""

from __future__ import annotations

from dataclasses import replace

from neurond.snapshots.recent_shares import RecentShares
from neurond.snapshots.recent_steps import RecentStepsByProcess
from neurontools.model import (
    LatencyHistogram,
    LatencyPercentiles,
    NeuronCore,
    Process,
    Snapshot,
    TrainingCounters,
    TrainingRates,
    latency,
)
from neurontools.model.training import STEP_PARTS


class Rates:
    """Derives the rates of each snapshot from the ones before it. Feed it every snapshot, in order."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._processes: dict[int, Process] = {}
        self._shares = RecentShares()
        self._steps = RecentStepsByProcess()
        self._measured: dict[int, tuple[float, Process]] = {}  # by PID: when vCPU times were last read

    def derive(self, snapshot: Snapshot, *, processes_read: bool) -> Snapshot:
        """The snapshot with its rates. `processes_read`: the vCPU times in it are new and not those of before."""
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
        self._shares.keep(self._processes.keys())
        self._steps.keep(self._processes.keys())
        self._measured = {pid: kept for pid, kept in self._measured.items() if pid in self._processes}
        return derived

    def _process(self, now: Process, snapshot: Snapshot, processes_read: bool) -> Process:
        before = self._processes.get(now.pid)
        if before is None or before.attached_at_unix_seconds != now.attached_at_unix_seconds:
            self._measured.pop(now.pid, None)
            before = None
        values = self._vcpu_ratios(now, before, snapshot, processes_read)
        values |= _execution_rates(now, before)
        values |= self._shares.derive(now)
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
        return {
            "executions_per_second": before.executions_per_second,
            "total_latency": before.total_latency,
            "device_latency": before.device_latency,
            "training_rates": before.training_rates,
        }
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
    """The parts of step time as shares of it, by the names of their fields.

    Who tells what was the host's tells all parts, of one moment, and the whole is their sum: the report has been made
    a little later, or earlier, than they were read. Of one part alone the whole is the time between two reports.
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
        return latency.percentiles(latency.difference(now, before))
    except ValueError:  # the reporter began anew; its next period is known again
        return None


def _executions(process: Process) -> int | None:
    counters = process.executions
    return None if counters is None else sum(getattr(counters, name) for name in counters.__slots__)


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """Growth a second; None when an end is unknown, no time passed, or the counter fell (it was reset)."""
    if before is None or now is None or seconds <= 0 or now < before:
        return None
    return (now - before) / seconds
