"""Rules about processes: errors, silence."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.verdicts.evidence import NO_ERRORS, Evidence, at_least
from neurontools.model import Finding, Process, Severity, SourceKind
from neurontools.model.finding import Kind


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
