"""Rules about processes: errors, silence, latencies."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.verdicts.evidence import NO_ERRORS, Evidence, at_least
from neurontools.health import Kind
from neurontools.model import Finding, Process, Severity, SourceKind, latency
from neurontools.text.units import duration_text


def errors(evidence: Evidence) -> Iterator[Finding]:
    """Errors of executions in the window; a process that is younger than it is judged over its life."""
    for process in evidence.snapshot.processes:
        if process.errors is None or process.errors == NO_ERRORS:
            continue
        before = evidence.errors_before(process)
        if before is None or before is process.errors:
            continue
        for kind, severity, name, limit, action in (
            (
                Kind.HARDWARE_ERRORS,
                Severity.CRITICAL,
                "hardware",
                evidence.limits.hardware_errors,
                "see dmesg for NEURON_HW_ERR; move the work off this device and have the host replaced",
            ),
            (
                Kind.NUMERICAL_ERRORS,
                Severity.WARNING,
                "numerical",
                evidence.limits.numerical_errors,
                "the model produces NaN or infinities: check the learning rate, the loss scale and the data",
            ),
        ):
            grown = getattr(process.errors, f"{name}_total") - getattr(before, f"{name}_total")
            if process.core_indices and limit is not None and grown >= limit:
                reason = f"PID {process.pid}: {at_least(grown, f'{name} error')} in the last minutes"
                yield _of_process(process, kind, severity, reason, action, evidence.snapshot.taken_at_unix_seconds)


def silence(evidence: Evidence) -> Iterator[Finding]:
    """Processes that hold cores and don't report."""
    snapshot, limit = evidence.snapshot, evidence.limits.silent_seconds
    for process in snapshot.processes:
        if limit is None or process.reporting or not process.core_indices:
            continue
        if process.measured_at_seconds is not None:
            silent_seconds = snapshot.taken_at_seconds - process.measured_at_seconds
            what = "has stopped reporting"
        elif snapshot.source is SourceKind.SIMULATED and process.attached_at_unix_seconds is not None:
            # On real devices the driver tells, and nobody has to report.
            silent_seconds = snapshot.taken_at_unix_seconds - process.attached_at_unix_seconds
            what = "has reported nothing yet"
        else:
            continue
        if silent_seconds >= limit:
            yield _of_process(
                process,
                Kind.STALE_REPORT,
                Severity.WARNING,
                f"PID {process.pid} holds cores and {what}",
                f"its numbers are old; see whether it is stopped (ps -o stat {process.pid}) or swapping",
                snapshot.taken_at_unix_seconds - silent_seconds,
            )


def latencies(evidence: Evidence) -> Iterator[Finding]:
    """Executions that take longer in the window than before it. A process that is younger has nothing to compare with.

    Its first executions set models up, so that they say little of those that follow.
    """
    limit = evidence.limits.latency_growth_ratio
    if limit is None:
        return
    for process in evidence.snapshot.processes:
        before = evidence.processes.get(process.pid)
        risen = _risen(before, process, limit, evidence.limits.latency_executions) if before is not None else None
        if risen is not None and process.core_indices:
            was, now = (duration_text(float(f"{seconds:.1e}")) for seconds in risen)
            yield _of_process(
                process,
                Kind.LATENCY_RISEN,
                Severity.WARNING,
                f"PID {process.pid}: median latency rose from {was} to {now}",
                "the device may be throttled or its input slow: compare power, vCPU use and the batch size",
                evidence.snapshot.taken_at_unix_seconds,
            )


def _risen(before: Process, process: Process, limit: float, most_few: int) -> tuple[float, float] | None:
    """The medians before the window and in it, where the one is so much above the other."""
    past, whole = before.device_latency_histogram, process.device_latency_histogram
    if past is whole or not whole.bucket_indices or not past.bucket_indices:
        return None
    fastest, slowest = (latency.bucket_seconds(index) for index in (past.bucket_indices[0], whole.bucket_indices[-1]))
    if slowest < limit * fastest or sum(past.bucket_counts) < most_few:  # most are steady: spares what follows
        return None
    try:
        recent = latency.difference(whole, past)
    except ValueError:  # its reporter began anew
        return None
    if sum(recent.bucket_counts) < most_few:
        return None
    was, now = latency.median_seconds(past), latency.median_seconds(recent)
    return (was, now) if was is not None and now is not None and now >= limit * was else None


def _of_process(
    process: Process, kind: Kind, severity: Severity, reason: str, action: str, began_at_unix_seconds: float
) -> Finding:
    return Finding(
        kind,
        severity,
        reason,
        action,
        began_at_unix_seconds,
        process.device_indices,
        process.pid,
        (process.pid,),
        synthetic=process.synthetic,
    )
