"""What happened between two snapshots: the exact growth of counters, matched by process and core."""

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
"""A process that has not told anything for so long is not waited for any more."""


@dataclass(frozen=True, slots=True)
class RecordBaseline:
    """The snapshot of the record before, and since when records are made.

    `away` has processes as they were last seen, which a daemon that was restarted since has not seen yet: they attach
    anew within seconds, and what they did meanwhile belongs into the next record that has them.
    """

    snapshot: Snapshot
    began_seconds: float  # taken_at_seconds of the first snapshot that records were compared with
    away: Mapping[CountKey, Process] = field(default_factory=dict)

    @classmethod
    def first(cls, snapshot: Snapshot) -> RecordBaseline:
        """The baseline that a series of records begins with."""
        return cls(snapshot, snapshot.taken_at_seconds)

    def after(self, now: Snapshot) -> RecordBaseline:
        """The baseline that a record of `now` leaves behind."""
        return RecordBaseline(now, self.began_seconds, self._away(now))

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


class RecordPeriod:
    """The time from a baseline to `now`, two moments of one host; without one nothing is known of it: 0 seconds.

    A baseline that is later than `now` is none: clocks began anew, on another host or after a restart of it.
    """

    def __init__(self, now: Snapshot, baseline: RecordBaseline | None) -> None:
        self.now = now
        usable = (
            baseline if baseline is not None and baseline.snapshot.taken_at_seconds <= now.taken_at_seconds else None
        )
        self.before = usable.snapshot if usable else None
        self.seconds = now.taken_at_seconds - self.before.taken_at_seconds if self.before else 0.0
        self._began_seconds = usable.began_seconds if usable else now.taken_at_seconds
        self._away = usable.away if usable else {}
        self._processes = {process.pid: process for process in self.before.processes} if self.before else {}
        self._cores = {core.index: core for core in self.before.cores} if self.before else {}

    def process_before(self, process: Process) -> Process | None:
        """The same process when it was last seen; None when it was not attached yet, or nothing is known of then."""
        earlier = self._processes.get(process.pid)
        if earlier is not None and counters_continue(earlier, process):
            return earlier
        key = count_key(process)
        return None if key is None else self._away.get(key)

    def seconds_of(self, process: Process) -> float:
        """How long that took what is told of a process here: its counts, and what its cores did.

        That is from its report before the period to its latest one, and not from snapshot to snapshot, between which
        anything from no report to several may come. One that began within the period took all of it, and so did one
        that has not reported.
        """
        earlier = self.process_before(process)
        if earlier is None or earlier.measured_at_seconds is None or process.measured_at_seconds is None:
            return self.seconds
        seconds = process.measured_at_seconds - earlier.measured_at_seconds
        return seconds if seconds > 0 else self.seconds

    def has_report(self, process: Process) -> bool:
        """Whether a process has reported in the period; where it hasn't, nothing can be said of it."""
        earlier = self.process_before(process)
        return earlier is None or earlier.measured_at_seconds != process.measured_at_seconds

    def _counted_here(self, process: Process) -> bool:
        """Whether all that a process without an earlier state has counted belongs to this period.

        What it counted before the first of these records does not: it had been attached to an earlier daemon, or to
        none.
        """
        since_seconds = process.counted_since_seconds
        return self.before is not None and (since_seconds is None or since_seconds >= self._began_seconds)

    def counts(self, name: str, process: Process) -> dict[str, int] | None:
        """By counter, without `_total`: what the process counted in `executions` or `errors` in the period.

        A process that began to count within the period counted all of it there. None where nobody tells.
        """
        now: ExecutionCounters | ErrorCounters | None = getattr(process, name)
        if now is None:
            return None
        earlier = self.process_before(process)
        if earlier is None and not self._counted_here(process):
            return dict.fromkeys(_counters_by_short_name(now), 0)
        before = (getattr(earlier, name) if earlier is not None else None) or type(now)()
        return {
            short: max(0, getattr(now, full) - getattr(before, full))
            for short, full in _counters_by_short_name(now).items()
        }

    def latency(self, name: str, process: Process) -> LatencyPercentiles | None:
        """Percentiles of `total_latency` or `device_latency` in the period; None when nothing ran."""
        earlier = self.process_before(process)
        if earlier is None and not self._counted_here(process):
            known: LatencyPercentiles | None = getattr(process, name)
            return known
        histogram: LatencyHistogram = getattr(process, f"{name}_histogram")
        if earlier is not None:
            past: LatencyHistogram = getattr(earlier, f"{name}_histogram")
            if past == histogram:
                return None
            with contextlib.suppress(ValueError):  # the reporter began anew: all there is came since
                histogram = execution.subtract_histograms(histogram, past)
        return execution.latency_percentiles(histogram)

    def work_rates(self, process: Process, position: int) -> tuple[float, float] | None:
        """Share of the period (0..1) that a process spent in executions on one of its logical cores, and its FLOPS.

        By its own count, in which no earlier owner of the core is and which a restart of the daemon does not end. None
        where it doesn't tell, or not of the whole period.
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
        """Share of the period that a physical core spent in executions (0..1), and its FLOPS; None where unknown."""
        earlier = self._cores.get(core.index)
        derived = core.utilization_ratio, core.flops_per_second
        if earlier is None or core.measured_at_seconds is None or not self._is_one_count_of_cores():
            return derived
        is_held_on = earlier.owner_pid == core.owner_pid
        if earlier.owner_pid is None or (is_held_on and earlier.measured_at_seconds is None):  # nobody had told of it
            if not self._counted_here(owner):  # it is older than the period: how long it was seen there is not known
                return derived
            seconds = self.seconds_of(owner)
        elif is_held_on and self.process_before(owner) and earlier.measured_at_seconds is not None:
            seconds = core.measured_at_seconds - earlier.measured_at_seconds
        else:  # others held it in between: what is theirs can't be told apart
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
        """Whether the counters of cores went on through the period: a daemon that simulates them begins anew."""
        return (
            self.before is not None and self.before.cores_counted_since_seconds == self.now.cores_counted_since_seconds
        )

    def vcpu_ratios(self, process: Process) -> tuple[float | None, float | None]:
        """vCPUs that a process kept busy in the period, in user and in system mode; 2.0 is two vCPUs."""
        earlier = self.process_before(process)
        if earlier is None or self.seconds <= 0:
            return process.vcpu_user_ratio, process.vcpu_system_ratio
        user = _increase(earlier.cpu_user_seconds_total, process.cpu_user_seconds_total)
        system = _increase(earlier.cpu_system_seconds_total, process.cpu_system_seconds_total)
        return (
            None if user is None else user / self.seconds,
            None if system is None else system / self.seconds,
        )

    def vcpu_usage(self) -> tuple[VcpuUsage | None, tuple[VcpuUsage, ...], float]:
        """How the host's vCPUs spent the period: on average, each by index, and the seconds that this is about.

        Without times at both ends (the first record of all, a recording of an older daemon) it is about the daemon's
        last interval, if that is known.
        """
        host = self.now.host
        usage = vcpu_usage_between(host.vcpu_times, self.before.host.vcpu_times) if self.before else None
        if usage is not None:
            return *usage, self.seconds
        return host.vcpu_average, host.vcpus, self.now.interval_seconds if host.vcpu_average else 0.0


_counter_names: dict[type, dict[str, str]] = {}


def _counters_by_short_name(counters: ExecutionCounters | ErrorCounters) -> dict[str, str]:
    kind = type(counters)
    if kind not in _counter_names:
        _counter_names[kind] = {name.removesuffix("_total"): name for name in kind.__slots__}
    return _counter_names[kind]


def _increase(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else now - before
