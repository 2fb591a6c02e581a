"""Rules about processes: errors, missing reports, latencies, unused pod allocations, and cores that keep failing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic

from neurond.verdicts.evidence import (
    FAILURE_ACTION,
    NO_ERRORS,
    TIMEOUT_ACTION,
    Hysteresis,
    HysteresisLevel,
    Key,
    ProcessIdentity,
    RuleContext,
    at_least_text,
    growth,
    has_fallen,
    process_identity,
)
from neurontools.model import (
    ExecutionCounters,
    Finding,
    LatencyHistogram,
    NeuronCore,
    PodAllocation,
    Process,
    Severity,
    Snapshot,
    SourceKind,
    execution,
)
from neurontools.model.finding import FindingKind
from neurontools.model.jobs import job_key
from neurontools.util.units import duration_text, ranges_text

ERROR_KINDS = (FindingKind.HARDWARE_ERRORS, FindingKind.NUMERICAL_ERRORS, FindingKind.FAILED_EXECUTIONS)
"""Kinds of the findings about errors of processes, which hold after the process has ended."""


def process_errors(context: RuleContext) -> Iterator[Finding]:
    """Reports errors and failed executions in the window, of processes that run or that ended in the window."""
    limits, at = context.limits, context.snapshot.taken_at_unix_seconds
    for process in (*context.snapshot.processes, *context.ended):
        if process.errors is None or not process.core_indices:
            continue
        if process.errors == NO_ERRORS and not _failed_total(process.executions):
            continue
        errors_before, executions_before = context.counters_before(process)
        if errors_before is None:
            continue
        hardware = process.errors.hardware_total - errors_before.hardware_total
        timeouts = failures = 0
        if process.executions is not None and executions_before is not None:
            timeouts = process.executions.timed_out_total - executions_before.timed_out_total
            # An execution that meets a hardware error fails too, and has a finding of its own.
            failures = _failed_total(process.executions) - _failed_total(executions_before) - timeouts - hardware
        for kind, part, severity, count, what, limit, action in (
            (
                FindingKind.HARDWARE_ERRORS,
                None,
                Severity.CRITICAL,
                hardware,
                "hardware error",
                limits.hardware_errors,
                "see dmesg for NEURON_HW_ERR; move the work off this device and have the host replaced",
            ),
            (
                FindingKind.NUMERICAL_ERRORS,
                None,
                Severity.WARNING,
                process.errors.numerical_total - errors_before.numerical_total,
                "numerical error",
                limits.numerical_errors,
                "the model produces NaN or infinities: check the learning rate, the loss scale and the data",
            ),
            (
                FindingKind.FAILED_EXECUTIONS,
                "timeout",
                Severity.WARNING,
                timeouts,
                "timed-out execution",
                limits.failed_executions,
                TIMEOUT_ACTION,
            ),
            (
                FindingKind.FAILED_EXECUTIONS,
                None,
                Severity.WARNING,
                failures,
                "failed execution",
                limits.failed_executions,
                FAILURE_ACTION,
            ),
        ):
            if limit is not None and count >= limit:
                reason = f"PID {process.pid}: {at_least_text(count, what)} in the last minutes"
                yield process_finding(process, kind, severity, reason, action, at, part)


def _failed_total(executions: ExecutionCounters | None) -> int:
    """Returns the number of failed executions. Results with NaN are no failures."""
    if executions is None:
        return 0
    return (
        executions.completed_with_err_total
        + executions.timed_out_total
        + executions.incorrect_input_total
        + executions.failed_to_queue_total
    )


def silent_processes(context: RuleContext) -> Iterator[Finding]:
    """Reports processes that hold cores and don't report."""
    snapshot, limit = context.snapshot, context.limits.silent_seconds
    for process in snapshot.processes:
        if limit is None or process.reporting or not process.core_indices:
            continue
        if process.measured_at_seconds is not None:
            silent_seconds = snapshot.taken_at_seconds - process.measured_at_seconds
            what = "has stopped reporting"
        elif snapshot.source is SourceKind.SIMULATED and process.attached_at_unix_seconds is not None:
            # With real devices, the driver counts executions and a process need not report.
            silent_seconds = snapshot.taken_at_unix_seconds - process.attached_at_unix_seconds
            what = "has reported nothing yet"
        else:
            continue
        if silent_seconds >= limit:
            yield process_finding(
                process,
                FindingKind.STALE_REPORT,
                Severity.WARNING,
                f"PID {process.pid} holds cores and {what}",
                f"its numbers are old; see whether it is stopped (ps -o stat {process.pid}) or swapping",
                snapshot.taken_at_unix_seconds - silent_seconds,
            )


def process_finding(
    process: Process,
    kind: FindingKind,
    severity: Severity,
    reason: str,
    action: str,
    began_at_unix_seconds: float,
    part: str | None = None,
) -> Finding:
    """Builds a finding about one process on all its devices."""
    return Finding(
        kind,
        severity,
        reason,
        action,
        began_at_unix_seconds,
        process.device_indices,
        process.pid,
        (process.pid,),
        process.neuroncore_indices[0] if len(process.neuroncore_indices) == 1 else None,
        part,
        synthetic=process.synthetic,
    )


_Key = tuple[str, str, str]


class OrphanedPodRule:
    """Reports pods whose NeuronCores nobody uses. Call it with every tick's snapshot, in order."""

    def __init__(self) -> None:
        self._since_unix_seconds: dict[_Key, float] = {}

    def update(self, snapshot: Snapshot, patience_seconds: float | None) -> Iterator[Finding]:
        """Yields a finding for each container whose cores no process has held for `patience_seconds`."""
        if patience_seconds is None or not snapshot.pod_allocations:
            self._since_unix_seconds = {}
            return
        now = snapshot.taken_at_unix_seconds
        since: dict[_Key, float] = {}
        for allocation in snapshot.pod_allocations:
            unheld, device_indices = _unused_cores(allocation, snapshot)
            if not unheld:
                continue
            key = allocation.pod_namespace, allocation.pod_name, allocation.container_name
            since[key] = self._since_unix_seconds.get(key, now)
            if now - since[key] >= patience_seconds:
                pod = f"{allocation.pod_namespace}/{allocation.pod_name}"
                yield Finding(
                    FindingKind.ORPHANED,
                    Severity.NOTICE,
                    f"the kubelet has given NeuronCore{'s' if len(unheld) > 1 else ''} {ranges_text(unheld)} to pod "
                    f"{pod}, container {allocation.container_name}, where no process holds "
                    f"{'them' if len(unheld) > 1 else 'it'}",
                    f"end the pod if its work is done (kubectl -n {allocation.pod_namespace} delete pod "
                    f"{allocation.pod_name}), so that others can use them",
                    since[key],
                    device_indices,
                    job=f"pod {pod}",
                    part=allocation.container_name,
                )
        self._since_unix_seconds = since


def _unused_cores(allocation: PodAllocation, snapshot: Snapshot) -> tuple[list[int], tuple[int, ...]]:
    """Returns the unused logical cores of an allocation, and their devices.

    A core is unused if it has no owner, no possible owner and no used memory.
    """
    lnc = snapshot.instance.logical_neuroncore_config
    cores, devices = set(allocation.neuroncore_indices), set(allocation.device_indices)
    found: dict[int, bool] = {}
    places: dict[int, int] = {}
    for core in snapshot.cores:
        logical = core.index // lnc
        if logical in cores or core.device_index in devices:
            is_held = core.owner_pid is not None or bool(core.candidate_pids) or core.is_allocated
            found[logical] = found.get(logical, False) or is_held
            places[logical] = core.device_index
    unheld = [logical for logical, is_held in found.items() if not is_held]
    return unheld, tuple(sorted({places[logical] for logical in unheld}))


_BEGINS_AFTER_WINDOWS, _ENDS_AFTER_WINDOWS = 0.1, 0.5
"""How long a latency must be over its limit to begin a finding, or better to end it, as shares of the window."""

_BETTER_RATIO = 0.5  # a latency is clearly better if it grew by less than this share of the allowed growth

_Medians = tuple[float, float]  # median latency before the window and in it, in seconds


class RisenMedians(Generic[Key]):
    """Finds histograms of latencies whose median rose. Call `update` for each key at every tick, in order."""

    def __init__(self) -> None:
        self._rises: Hysteresis[Key] = Hysteresis()
        self._shown: dict[Key, _Medians] = {}

    def update(
        self,
        key: Key,
        now: LatencyHistogram,
        before: Iterable[LatencyHistogram],
        context: RuleContext,
    ) -> RisenMedian | None:
        """Returns the rise of the median latency of a key; None if it has not risen for long enough.

        `before` are earlier histograms of the same counters. The first one with enough latencies since is compared.
        The rise ends if none is left.
        """
        limits = context.limits
        limit = limits.latency_growth_ratio
        if limit is None:
            return None
        least = 0.0 if self._rises.is_known(key) else limit
        found = (_medians(past, now, least, limits.latency_executions) for past in before)
        medians = next((each for each in found if each is not None), None)
        since = self._rises.holds_since(
            key,
            _level(medians, limit),
            context.snapshot.taken_at_unix_seconds,
            begins_after_seconds=_BEGINS_AFTER_WINDOWS * limits.window_seconds,
            ends_after_seconds=_ENDS_AFTER_WINDOWS * limits.window_seconds,
        )
        if since is None:
            self._shown.pop(key, None)
            return None
        return RisenMedian(since, *self._stable_medians(key, medians, limit))

    def forget_others(self, keys: Collection[Key]) -> None:
        self._rises.forget_others(keys)
        self._shown = {key: shown for key, shown in self._shown.items() if key in keys}

    def _stable_medians(self, key: Key, medians: _Medians | None, limit: float) -> _Medians:
        """Returns the shown latencies unless they changed much: the text is a metric label and should change seldom."""
        shown = self._shown.get(key)
        if medians is not None and (shown is None or not shown[1] / limit < medians[1] < shown[1] * limit):
            shown = self._shown[key] = medians
        assert shown is not None  # noqa: S101  a rise begins with a measurement
        return shown


@dataclass(frozen=True, slots=True)
class RisenMedian:
    """A median latency that rose, and since when."""

    began_at_unix_seconds: float
    was_seconds: float
    is_seconds: float

    @property
    def text(self) -> str:
        was, now = (duration_text(float(f"{seconds:.1e}")) for seconds in (self.was_seconds, self.is_seconds))
        return f"rose from {was} to {now}"


class LatencyRule:
    """Reports processes whose median latency rose. Call it with every tick's snapshot, in order.

    The finding is a notice about the process, because other work on its vCPU can slow it too. A device has a finding
    only if unrelated processes on it are slower, and never on a simulated host, where vCPUs execute everything.
    """

    def __init__(self) -> None:
        self._medians: RisenMedians[ProcessIdentity] = RisenMedians()

    def __call__(self, context: RuleContext) -> Iterator[Finding]:
        snapshot = context.snapshot
        known = set()
        slower: dict[int, dict[str | int, float]] = {}  # when the latencies of each job rose, by device
        for process in snapshot.processes:
            periods = [each.device_latency_histogram for each in context.earlier(process)]
            if not periods or not process.core_indices:
                continue
            key = process_identity(process)
            known.add(key)
            risen = self._medians.update(key, process.device_latency_histogram, periods, context)
            if risen is None:
                continue
            yield latency_finding(
                process,
                f"PID {process.pid}: median latency {risen.text}",
                "its vCPU may be busy, its input slow or its device throttled: compare vCPU use, batch size and power",
                risen.began_at_unix_seconds,
            )
            for index in process.device_indices if snapshot.source is not SourceKind.SIMULATED else ():
                slower.setdefault(index, {}).setdefault(job_key(process), risen.began_at_unix_seconds)
        for index, jobs in slower.items():
            if len(jobs) > 1:
                yield Finding(
                    FindingKind.LATENCY_RISEN,
                    Severity.WARNING,
                    "the median latencies of unrelated processes on this device rose",
                    "the device may be throttled: compare its power and ECC errors with those of the others",
                    max(jobs.values()),
                    (index,),
                )
        self._medians.forget_others(known)


def _level(medians: _Medians | None, limit: float) -> HysteresisLevel:
    """Compares the rise of a median latency with its limit. Without medians, the level is BETTER."""
    if medians is None:
        return HysteresisLevel.BETTER
    was, now = medians
    if now >= limit * was:
        return HysteresisLevel.OVER
    return HysteresisLevel.BETTER if now < (1.0 + _BETTER_RATIO * (limit - 1.0)) * was else HysteresisLevel.BETWEEN


def _medians(past: LatencyHistogram, whole: LatencyHistogram, least_growth: float, most_few: int) -> _Medians | None:
    """Returns the median latencies before and in the window.

    Returns None if either is unknown, or if the latency can't have grown by `least_growth`.
    """
    if past is whole or not whole.bucket_indices or not past.bucket_indices:
        return None
    fastest, slowest = (execution.bucket_seconds(index) for index in (past.bucket_indices[0], whole.bucket_indices[-1]))
    # Most latencies are steady. For steady latencies, this check saves the subtraction of histograms.
    if slowest < least_growth * fastest or sum(past.bucket_counts) < most_few:
        return None
    try:
        recent = execution.subtract_histograms(whole, past)
    except ValueError:  # the process restarted its counters
        return None
    if sum(recent.bucket_counts) < most_few:
        return None
    was, now = execution.median_seconds(past), execution.median_seconds(recent)
    return None if was is None or now is None else (was, now)


def latency_finding(
    process: Process, reason: str, action: str, began_at_unix_seconds: float, part: str | None = None
) -> Finding:
    """Builds a notice about the latencies of a process. It names no device, because a busy vCPU may be the cause."""
    kind = FindingKind.LATENCY_RISEN
    found = process_finding(process, kind, Severity.NOTICE, reason, action, began_at_unix_seconds, part)
    return replace(found, device_indices=(), neuroncore_index=None)


_MIN_PROCESSES = 2  # number of consecutive processes that must fail on a core before the core is reported
_HARDWARE = ("hw_error_total", "hw_dma_abort_error_total", "hw_nc_ue_error_total", "hw_hbm_ue_error_total")
_CONFIRMING_COUNTERS = ("timeout_total",)  # a timeout may have other causes, so it counts only after a failure


@dataclass(slots=True)
class _Past:
    """A core at the last tick, and the processes for which the core has failed since it last worked."""

    core: NeuronCore
    owner: ProcessIdentity | None = None
    failed_for: dict[ProcessIdentity, float] = field(default_factory=dict)  # Unix time of each failure

    def record_outcome(self, process: ProcessIdentity | None, at_unix_seconds: float, has_worked: bool | None) -> None:
        """Records whether a process's work on the core succeeded; None: it finished no work."""
        if has_worked is False and process is not None:
            self.failed_for.setdefault(process, at_unix_seconds)
        elif has_worked:
            self.failed_for.clear()


class FailingCoreRule:
    """Reports cores that fail for several processes in a row. Call it with every tick's snapshot, in order."""

    def __init__(self) -> None:
        self._cores: dict[int, _Past] = {}
        self._processes: dict[ProcessIdentity, Process] = {}
        self._has_failed = False

    def update(self, snapshot: Snapshot, ended: Iterable[Process] = ()) -> Iterator[Finding]:
        """Yields a finding for each device with cores that failed for several consecutive processes.

        `ended` are the processes that ended since the last tick: a failing process seldom lives until the next tick.
        """
        for process in ended:
            self._record_ended(process, snapshot)
        by_pid = {process.pid: process for process in snapshot.processes if process.core_indices}
        outcomes = {process_identity(process): self._has_worked(process) for process in by_pid.values()}
        self._processes = {process_identity(process): process for process in by_pid.values()}
        self._has_failed = self._has_failed or False in outcomes.values()
        if not self._has_failed and snapshot.source is SourceKind.SIMULATED:  # a simulated host has no driver counters
            return
        failing: dict[int, list[tuple[NeuronCore, dict[ProcessIdentity, float]]]] = {}
        for core in snapshot.cores:
            past = self._cores.setdefault(core.index, _Past(core))
            owner = by_pid.get(core.owner_pid) if core.owner_pid is not None else None
            owner_identity = process_identity(owner) if owner is not None else None
            # Before version 2.30, the driver updates the counters only after the process has ended.
            blamed = owner_identity or past.owner
            has_worked = outcomes.get(owner_identity) if owner_identity is not None else None
            if core.status is not None and core.status is not past.core.status:
                failures, timeouts, successes = _grown(past.core, core)
                has_failed = failures > 0 or (timeouts > 0 and bool(past.failed_for))
                has_worked = False if has_failed else (successes > 0 or None)
            was_reset = growth(past.core.reset_requests_total, core.reset_requests_total) > 0
            is_simulated = snapshot.source is SourceKind.SIMULATED
            if was_reset or has_fallen(past.core.status, core.status, none_is_zero=is_simulated):
                has_worked = True
            past.record_outcome(blamed, snapshot.taken_at_unix_seconds, has_worked)
            past.core, past.owner = core, owner_identity
            if len(past.failed_for) >= _MIN_PROCESSES:
                failing.setdefault(core.device_index, []).append((core, past.failed_for))
        for device_index, cores in failing.items():
            yield _failing_cores_finding(device_index, cores, snapshot.instance.logical_neuroncore_config)

    def forget_processes(self, healed: Collection[ProcessIdentity]) -> None:
        """Forgets the failures of processes that met an injected fault which was healed."""
        for past in self._cores.values():
            for identity in past.failed_for.keys() & healed:
                del past.failed_for[identity]

    def _record_ended(self, process: Process, snapshot: Snapshot) -> None:
        has_worked = self._has_worked(process)
        self._has_failed = self._has_failed or has_worked is False
        for core in snapshot.cores if has_worked is not None else ():
            if core.index in process.core_indices:
                past = self._cores.setdefault(core.index, _Past(core))
                past.record_outcome(process_identity(process), snapshot.taken_at_unix_seconds, has_worked)

    def _has_worked(self, process: Process) -> bool | None:
        """Whether a process finished work since the last tick; False after a hardware error, None without any work."""
        before = self._processes.get(process_identity(process))
        if process.errors is None or process.executions is None:
            return None
        if before is not None and before.errors is process.errors and before.executions is process.executions:
            return None
        errors_before = before.errors.hardware_total if before is not None and before.errors is not None else 0
        done_before = before.executions.completed_total if before is not None and before.executions is not None else 0
        if process.errors.hardware_total > errors_before:
            return False
        return process.executions.completed_total > done_before or None


def _grown(before: NeuronCore, now: NeuronCore) -> tuple[int, int, int]:
    """Returns the growth of a core's counters of hardware failures, timeouts and successes."""
    old, new = before.status, now.status
    if old is None or new is None:
        return 0, 0, 0
    failures, timeouts, successes = (
        sum(growth(getattr(old, name), getattr(new, name)) for name in names)
        for names in (_HARDWARE, _CONFIRMING_COUNTERS, ("success_total",))
    )
    return failures, timeouts, successes


def _failing_cores_finding(
    device_index: int, failing: list[tuple[NeuronCore, dict[ProcessIdentity, float]]], lnc: int
) -> Finding:
    cores = sorted({core.index // lnc for core, _ in failing})
    since = max(failing, key=lambda each: len(each[1]))[1]
    pids = [pid for pid, _ in since]
    one = len(cores) == 1
    return Finding(
        FindingKind.NEEDS_RESET,
        Severity.CRITICAL,
        f"NeuronCore{'' if one else 's'} {ranges_text(cores)} {'has' if one else 'have'} failed for {len(pids)} "
        f"processes in a row (PID {', '.join(map(str, pids[-3:]))})",
        f"restarting the job does not help: end the processes on device {device_index}, then reset it "
        f"(as root: echo 1 > /sys/devices/virtual/neuron_device/neuron{device_index}/reset) or reload the driver",
        min(since.values()),
        (device_index,),
        neuroncore_index=cores[0] if one else None,
    )
