"""Computes the increase of counters between two snapshots, exactly, for each process and core."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from neurontools.model import (
    CoreWork,
    ErrorCounters,
    ExecutionCounters,
    LatencyHistogram,
    LatencyPercentiles,
    NeuronCore,
    Process,
    Snapshot,
    VcpuUsage,
    execution,
)
from neurontools.model.host import vcpu_usage_between
from neurontools.model.snapshot import CountKey, count_key, counters_continue

LONGEST_AWAY_SECONDS = 600.0
"""A baseline drops an absent process this long after its last report."""


@dataclass(frozen=True, slots=True)
class RecordBaseline:
    """The snapshot of the previous record, and the start of the series of records.

    `absent` has the last states of processes that have not attached again since the daemon restarted. The next record
    that lists such a process also covers what the process did in the meantime.
    """

    snapshot: Snapshot
    began_seconds: float  # `taken_at_seconds` of the first snapshot in the series
    absent: Mapping[CountKey, Process] = field(default_factory=dict)

    @classmethod
    def initial(cls, snapshot: Snapshot) -> RecordBaseline:
        return cls(snapshot, snapshot.taken_at_seconds)

    def next(self, now: Snapshot) -> RecordBaseline:
        """Returns the baseline of the next record; `now` is the snapshot of the current record."""
        return RecordBaseline(now, self.began_seconds, self._absent_processes(now))

    def _absent_processes(self, now: Snapshot) -> Mapping[CountKey, Process]:
        absent = dict(self.absent)
        if now.daemon_pid != self.snapshot.daemon_pid or now.sequence < self.snapshot.sequence:
            absent |= {key: process for process in self.snapshot.processes if (key := count_key(process)) is not None}
        if not absent:
            return self.absent
        present = {count_key(process) for process in now.processes}
        return {
            key: process
            for key, process in absent.items()
            if key not in present
            and now.taken_at_seconds - (process.measured_at_seconds or 0.0) <= LONGEST_AWAY_SECONDS
        }


class RecordPeriod:
    """The changes of counters between a baseline and the snapshot `now` of the same host.

    Without a baseline, the period is 0 seconds long. A baseline later than `now` is ignored: it comes from another
    host, or from before a reboot.
    """

    def __init__(self, now: Snapshot, baseline: RecordBaseline | None) -> None:
        self.now = now
        usable = (
            baseline if baseline is not None and baseline.snapshot.taken_at_seconds <= now.taken_at_seconds else None
        )
        self.before = usable.snapshot if usable else None
        self.seconds = now.taken_at_seconds - self.before.taken_at_seconds if self.before else 0.0
        self._began_seconds = usable.began_seconds if usable else now.taken_at_seconds
        self._absent = usable.absent if usable else {}
        self._processes = {process.pid: process for process in self.before.processes} if self.before else {}
        self._cores = {core.index: core for core in self.before.cores} if self.before else {}

    def process_before(self, process: Process) -> Process | None:
        """Returns the state of a process in the baseline; None if the baseline lacks it or its counters restarted."""
        earlier = self._processes.get(process.pid)
        if earlier is not None and counters_continue(earlier, process):
            return earlier
        key = count_key(process)
        return None if key is None else self._absent.get(key)

    def seconds_of(self, process: Process) -> float:
        """Returns the time that the counts of a process and its cores cover.

        The time spans from the last report before the period to the latest report, because the number of reports
        between two snapshots varies. For a process that started in the period or has not reported, the time is the
        whole period.
        """
        earlier = self.process_before(process)
        if earlier is None or earlier.measured_at_seconds is None or process.measured_at_seconds is None:
            return self.seconds
        seconds = process.measured_at_seconds - earlier.measured_at_seconds
        return seconds if seconds > 0 else self.seconds

    def has_report(self, process: Process) -> bool:
        """Whether a process has reported in the period; without a report its work is unknown."""
        earlier = self.process_before(process)
        return earlier is None or earlier.measured_at_seconds != process.measured_at_seconds

    def _counted_here(self, process: Process) -> bool:
        """Whether a process that the baseline lacks did all its counted work in this period.

        False if the process began to count before the first record, while the daemon did not know it.
        """
        since_seconds = process.counted_since_seconds
        return self.before is not None and (since_seconds is None or since_seconds >= self._began_seconds)

    def counts(self, name: str, process: Process) -> dict[str, int] | None:
        """Returns the increase of each counter in `executions` or `errors`, keyed by its name without `_total`.

        Includes all counts of a process that started in the period. None if the process doesn't report them.
        """
        now: ExecutionCounters | ErrorCounters | None = getattr(process, name)
        if now is None:
            return None
        earlier = self.process_before(process)
        if earlier is None and not self._counted_here(process):
            return dict.fromkeys(_counters_by_short_name(type(now)), 0)
        before = (getattr(earlier, name) if earlier is not None else None) or type(now)()
        names = _counters_by_short_name(type(now))
        return {short: max(0, getattr(now, full) - getattr(before, full)) for short, full in names.items()}

    def latency(self, name: str, process: Process) -> LatencyPercentiles | None:
        """Returns the percentiles of `total_latency` or `device_latency` in the period; None without executions."""
        earlier = self.process_before(process)
        if earlier is None and not self._counted_here(process):
            percentiles: LatencyPercentiles | None = getattr(process, name)
            return percentiles
        histogram: LatencyHistogram = getattr(process, f"{name}_histogram")
        if earlier is not None:
            past: LatencyHistogram = getattr(earlier, f"{name}_histogram")
            if past == histogram:
                return None
            with contextlib.suppress(ValueError):  # counting restarted, so the whole histogram is new
                histogram = execution.subtract_histograms(histogram, past)
        return execution.latency_percentiles(histogram)

    def work_rates(self, process: Process, position: int) -> tuple[float, float] | None:
        """Returns the busy share (0..1) and the FLOPS of a process on one of its logical cores.

        Uses counters of the process, which exclude earlier owners of the core and survive a restart of the daemon.
        Returns None if the process doesn't report these counters for the whole period.
        """
        if position >= len(process.core_work) or not self.has_report(process):
            return None
        now, before, seconds = process.core_work[position], CoreWork(), self.seconds_of(process)
        earlier = self.process_before(process)
        if earlier is not None:
            if position >= len(earlier.core_work) or earlier.neuroncore_indices != process.neuroncore_indices:
                return None
            before = earlier.core_work[position]
        elif not self._counted_here(process):
            return None
        busy = _increase(before.busy_seconds_total, now.busy_seconds_total)
        flop = _increase(before.flop_total, now.flop_total)
        return None if busy is None or flop is None or seconds <= 0 else (min(1.0, busy / seconds), flop / seconds)

    def core_rates(self, core: NeuronCore, owner: Process) -> tuple[float | None, float | None]:
        """Returns the busy share (0..1) and the FLOPS of a physical core, each None if unknown."""
        earlier = self._cores.get(core.index)
        derived = core.utilization_ratio, core.flops_per_second
        if earlier is None or core.measured_at_seconds is None or not self._is_one_count_of_cores():
            return derived
        is_held_on = earlier.owner_pid == core.owner_pid
        if earlier.owner_pid is None or (is_held_on and earlier.measured_at_seconds is None):
            # The baseline has no report about the core.
            if not self._counted_here(owner):  # counting began before the period, so the increase is unknown
                return derived
            seconds = self.seconds_of(owner)
        elif is_held_on and self.process_before(owner) and earlier.measured_at_seconds is not None:
            seconds = core.measured_at_seconds - earlier.measured_at_seconds
        else:  # the counters include the work of another process that held the core in between
            return derived
        if seconds <= 0:
            return derived
        busy = _increase(earlier.busy_seconds_total, core.busy_seconds_total)
        flop = _increase(earlier.flop_total, core.flop_total)
        return (
            derived[0] if busy is None else min(1.0, busy / seconds),
            derived[1] if flop is None else flop / seconds,
        )

    def _is_one_count_of_cores(self) -> bool:
        """Whether core counters continued through the period; a restart of the simulation resets them."""
        before = self.before
        return before is not None and before.cores_counted_since_seconds == self.now.cores_counted_since_seconds

    def vcpu_ratios(self, process: Process) -> tuple[float | None, float | None]:
        """Returns the average number of vCPUs that a process used, in user mode and in system mode."""
        earlier = self.process_before(process)
        if earlier is None or self.seconds <= 0:
            return process.vcpu_user_ratio, process.vcpu_system_ratio
        user = _increase(earlier.cpu_user_seconds_total, process.cpu_user_seconds_total)
        system = _increase(earlier.cpu_system_seconds_total, process.cpu_system_seconds_total)
        return None if user is None else user / self.seconds, None if system is None else system / self.seconds

    def vcpu_usage(self) -> tuple[VcpuUsage | None, tuple[VcpuUsage, ...], float]:
        """Returns the host's average vCPU usage, the usage of each vCPU, and the covered seconds.

        If a snapshot lacks vCPU times (the first record, or a recording of an older daemon), returns the usage in the
        daemon's last interval, if known.
        """
        host = self.now.host
        usage = vcpu_usage_between(host.vcpu_times, self.before.host.vcpu_times) if self.before else None
        if usage is not None:
            return *usage, self.seconds
        return host.vcpu_average, host.vcpus, self.now.interval_seconds if host.vcpu_average else 0.0


def _counters_by_short_name(kind: type[ExecutionCounters | ErrorCounters]) -> dict[str, str]:
    return {name.removesuffix("_total"): name for name in kind.__slots__}


def _increase(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else now - before
