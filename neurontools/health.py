"""Health: a verdict for each device, with the reasons and what to do about them. Pure: snapshots in, verdicts out.

How to use it:

    from neurontools import health

    for verdict in health.verdicts(snapshot, earlier=snapshot_of_some_minutes_ago):
        verdict.device_index, verdict.severity, verdict.is_healthy   # Severity.OK when there are no findings
        for finding in verdict.findings:                              # gravest first
            finding.kind, finding.severity, finding.reason, finding.action, finding.pid, finding.neuroncore_index
    health.is_healthy(verdicts)                                       # nothing is worse than a notice

`earlier` is any snapshot of the same host from the past, best the one of `Thresholds.window_seconds` ago (the daemon's
history has it). What is a matter of growth (corrected ECC events, numerical errors, latency) is judged between the two
and left open without it. Times are compared with `taken_at_unix_seconds`, so recordings are judged as of their own
time. `Thresholds(idle_seconds=60)` changes a limit; None for a limit switches its check off.

An idle device is a notice: a waste, but nothing is broken. Whatever is worse than a notice is unhealthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from neurontools.model import Device, NeuronCore, Process, Snapshot, SourceKind, latency
from neurontools.model.counting import continues
from neurontools.text.units import bytes_text, duration_text

__all__ = ["Finding", "Kind", "Severity", "Thresholds", "Verdict", "is_healthy", "verdicts"]


class Severity(IntEnum):
    """How grave a finding is; the numbers are those of the metric neurontools_device_health."""

    OK = 0
    NOTICE = 1  # worth knowing; nothing is broken
    WARNING = 2  # something is wrong or will be
    CRITICAL = 3  # work is lost or standing still


class Kind(StrEnum):
    """What was found."""

    DEVICE_MISSING = "device_missing"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ECC_REPAIRABLE = "ecc_repairable"
    ECC_CORRECTED = "ecc_corrected"
    STUCK = "stuck"
    HARDWARE_ERRORS = "hardware_errors"
    NUMERICAL_ERRORS = "numerical_errors"
    MEMORY_NEARLY_FULL = "memory_nearly_full"
    STALE_REPORT = "stale_report"
    LATENCY_RISEN = "latency_risen"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is a finding; None switches a check off."""

    window_seconds: float = 300.0  # over which growth is best judged: how old `earlier` should be
    idle_seconds: float | None = 300.0  # a core is held and has finished nothing for so long
    stuck_seconds: float | None = 60.0  # an execution has been in flight for so long
    memory_used_ratio: float | None = 0.95  # of an HBM stack
    ecc_corrected_events: int | None = 10  # corrected ECC events between the two snapshots
    numerical_errors: int | None = 1  # numerical errors between the two snapshots
    hardware_errors: int | None = 1  # hardware errors of executions between the two snapshots
    latency_growth_ratio: float | None = 1.5  # median since `earlier` against that of the time before it
    latency_executions: int = 20  # fewer than these on either side say nothing about latency
    silent_seconds: float | None = 30.0  # a process that reported has not done so for so long


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found on a device; `reason` and `action` are plain sentences without an end mark, safe for one line."""

    kind: Kind
    severity: Severity
    reason: str
    action: str
    pid: int | None = None
    neuroncore_index: int | None = None  # logical, under the LNC of the process


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one device; no findings: it is well."""

    device_index: int
    findings: tuple[Finding, ...] = ()  # gravest first

    @property
    def severity(self) -> Severity:
        """That of the gravest finding."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is worse than a notice."""
        return self.severity <= Severity.NOTICE


def is_healthy(found: Iterable[Verdict]) -> bool:
    """Whether all devices are."""
    return all(verdict.is_healthy for verdict in found)


def verdicts(
    snapshot: Snapshot, earlier: Snapshot | None = None, thresholds: Thresholds | None = None
) -> tuple[Verdict, ...]:
    """A verdict for each device that the instance should have, by index."""
    limits = thresholds or Thresholds()
    findings: dict[int, list[Finding]] = {index: [] for index in range(snapshot.instance.device_count)}
    for device in snapshot.devices:
        findings.setdefault(device.index, [])
    before = _Earlier(snapshot, earlier)
    present = {device.index for device in snapshot.devices}
    for index in findings.keys() - present:
        findings[index].append(_missing(index))
    for device in snapshot.devices:
        findings[device.index] += _device_findings(device, before.devices.get(device.index), limits)
    cores = {core.index: core for core in snapshot.cores}
    for process in snapshot.processes:
        if process.core_indices:
            case = _Case(process, before.processes.get(process.pid), snapshot, limits, cores)
            for check in _PROCESS_CHECKS:
                for device_index, finding in check(case):
                    findings.setdefault(device_index, []).append(finding)
    return tuple(
        Verdict(index, tuple(sorted(found, key=lambda finding: -finding.severity)))
        for index, found in sorted(findings.items())
    )


class _Earlier:
    """The parts of an earlier snapshot that can be compared: processes only where they are still the same."""

    def __init__(self, snapshot: Snapshot, earlier: Snapshot | None) -> None:
        usable = earlier if earlier is not None and earlier.sequence != snapshot.sequence else None
        self.devices = {device.index: device for device in usable.devices} if usable else {}
        now = {process.pid: process for process in snapshot.processes}
        self.processes = {
            process.pid: process
            for process in (usable.processes if usable else ())
            if process.pid in now and continues(process, now[process.pid])
        }


def _missing(index: int) -> Finding:
    return Finding(
        Kind.DEVICE_MISSING,
        Severity.CRITICAL,
        f"device {index} is missing: the instance type has it, the driver doesn't show it",
        "see dmesg for its failure; stop and start the instance to get another host",
    )


def _device_findings(device: Device, before: Device | None, limits: Thresholds) -> Iterator[Finding]:
    ecc = device.ecc
    uncorrected = (ecc.mem_uncorrected_total or 0) + (ecc.sram_uncorrected_total or 0)
    if uncorrected:
        yield Finding(
            Kind.ECC_UNCORRECTED,
            Severity.CRITICAL,
            f"{_counted(uncorrected, 'uncorrected ECC error')} since the driver was loaded",
            "move the work off this device; stop and start the instance to get another host",
        )
    if ecc.mem_repairable_uncorrected_total:
        yield Finding(
            Kind.ECC_REPAIRABLE,
            Severity.WARNING,
            f"{_counted(ecc.mem_repairable_uncorrected_total, 'repairable uncorrected ECC error')} in HBM",
            "end the processes on this device and reset it (or reboot), which repairs the rows",
        )
    if before is not None and limits.ecc_corrected_events is not None:
        events = _growth(before.ecc.mem_corrected_total, ecc.mem_corrected_total)
        events += _growth(before.ecc.sram_corrected_total, ecc.sram_corrected_total)
        if events >= limits.ecc_corrected_events:
            yield Finding(
                Kind.ECC_CORRECTED,
                Severity.WARNING,
                f"{_counted(events, 'corrected ECC error')} in the last minutes",
                "nothing is lost yet; if they go on, move the work and have the host replaced",
            )
    if limits.memory_used_ratio is not None:
        yield from _memory_findings(device, limits.memory_used_ratio)


def _growth(before: int | None, now: int | None) -> int:
    return max(0, now - before) if before is not None and now is not None else 0


def _memory_findings(device: Device, limit_ratio: float) -> Iterator[Finding]:
    for stack in device.hbm_stacks:
        if stack.used_bytes is not None and stack.capacity_bytes > 0:
            ratio = stack.used_bytes / stack.capacity_bytes
            if ratio >= limit_ratio:
                yield Finding(
                    Kind.MEMORY_NEARLY_FULL,
                    Severity.WARNING,
                    f"HBM {stack.index} is {ratio:.0%} full: {bytes_text(stack.used_bytes)} of "
                    f"{bytes_text(stack.capacity_bytes)}",
                    "the next allocation may fail; use smaller batches, shard further or end a process",
                )


@dataclass(frozen=True, slots=True)
class _Case:
    """One process to be judged."""

    process: Process
    before: Process | None
    snapshot: Snapshot
    limits: Thresholds
    cores: dict[int, NeuronCore]


def _activity(case: _Case) -> Iterator[tuple[int, Finding]]:
    """Cores that are stuck or idle; nothing is said of a process whose numbers are old."""
    process, snapshot, limits = case.process, case.snapshot, case.limits
    if not process.reporting:
        return
    now = snapshot.taken_at_unix_seconds
    attached = process.attached_at_unix_seconds
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        core = case.cores.get(process.core_indices[position * process.logical_neuroncore_config])
        if core is None:
            continue
        started = core.execution_started_at_unix_seconds
        if started is not None:
            running_seconds = now - started
            if limits.stuck_seconds is not None and running_seconds >= limits.stuck_seconds:
                yield (
                    core.device_index,
                    Finding(
                        Kind.STUCK,
                        Severity.CRITICAL,
                        f"NeuronCore {neuroncore_index}: one execution of PID {process.pid} has been running for "
                        f"{duration_text(running_seconds)} and does not finish",
                        f"look at the collectives of its peers (py-spy dump --pid {process.pid}), then restart the job",
                        process.pid,
                        neuroncore_index,
                    ),
                )
            continue
        since = max(core.last_execution_at_unix_seconds or 0.0, attached or 0.0)
        if limits.idle_seconds is not None and since and now - since >= limits.idle_seconds:
            yield (
                core.device_index,
                Finding(
                    Kind.IDLE,
                    Severity.NOTICE,
                    f"NeuronCore {neuroncore_index}: held by PID {process.pid} and idle for "
                    f"{duration_text(now - since)}",
                    f"end PID {process.pid} if its work is done, so that others can have the core",
                    process.pid,
                    neuroncore_index,
                ),
            )


def _errors(case: _Case) -> Iterator[tuple[int, Finding]]:
    process, before, limits = case.process, case.before, case.limits
    if before is None or before.errors is None or process.errors is None:
        return
    for kind, severity, name, limit, action in (
        (
            Kind.HARDWARE_ERRORS,
            Severity.CRITICAL,
            "hardware",
            limits.hardware_errors,
            "see dmesg for NEURON_HW_ERR; move the work off this device and have the host replaced",
        ),
        (
            Kind.NUMERICAL_ERRORS,
            Severity.WARNING,
            "numerical",
            limits.numerical_errors,
            "the model produces NaN or infinities: check the learning rate, the loss scale and the data",
        ),
    ):
        grown = getattr(process.errors, f"{name}_total") - getattr(before.errors, f"{name}_total")
        if limit is not None and grown >= limit:
            reason = f"PID {process.pid}: {_counted(grown, f'{name} error')} in the last minutes"
            for device_index in process.device_indices:
                yield device_index, Finding(kind, severity, reason, action, process.pid)


def _silence(case: _Case) -> Iterator[tuple[int, Finding]]:
    process, snapshot, limits = case.process, case.snapshot, case.limits
    if limits.silent_seconds is None or process.reporting:
        return
    if process.measured_at_seconds is not None:
        silent_seconds = snapshot.taken_at_seconds - process.measured_at_seconds
        reason = f"PID {process.pid} holds cores and last reported {duration_text(silent_seconds)} ago"
    elif snapshot.source is SourceKind.SIMULATED and process.attached_at_unix_seconds is not None:
        # On real devices the driver tells, and nobody has to report.
        silent_seconds = snapshot.taken_at_unix_seconds - process.attached_at_unix_seconds
        reason = f"PID {process.pid} holds cores and has reported nothing for {duration_text(silent_seconds)}"
    else:
        return
    if silent_seconds >= limits.silent_seconds:
        action = f"its numbers are old; see whether it is stopped (ps -o stat {process.pid}) or swapping"
        for device_index in process.device_indices:
            yield device_index, Finding(Kind.STALE_REPORT, Severity.WARNING, reason, action, process.pid)


def _latency(case: _Case) -> Iterator[tuple[int, Finding]]:
    process, before, limits = case.process, case.before, case.limits
    if before is None or limits.latency_growth_ratio is None:
        return
    past, whole = before.device_latency_histogram, process.device_latency_histogram
    if sum(past.bucket_counts) < limits.latency_executions or past is whole or not whole.bucket_indices:
        return
    fastest, slowest = (latency.bucket_seconds(index) for index in (past.bucket_indices[0], whole.bucket_indices[-1]))
    if slowest < limits.latency_growth_ratio * fastest:  # of a steady load, and spares it all that follows
        return
    try:
        recent = latency.difference(whole, past)
    except ValueError:  # its reporter began anew
        return
    if sum(recent.bucket_counts) < limits.latency_executions:
        return
    was, now = latency.median_seconds(past), latency.median_seconds(recent)
    if was is None or now is None or now < limits.latency_growth_ratio * was:
        return
    reason = f"PID {process.pid}: median latency rose from {duration_text(was)} to {duration_text(now)}"
    action = "the device may be throttled or its input slow: compare power, vCPU use and the batch size"
    for device_index in process.device_indices:
        yield device_index, Finding(Kind.LATENCY_RISEN, Severity.WARNING, reason, action, process.pid)


_PROCESS_CHECKS: tuple[Callable[[_Case], Iterator[tuple[int, Finding]]], ...] = (_activity, _errors, _silence, _latency)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
