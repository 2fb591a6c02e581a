"""Verdicts on devices: the daemon's findings, with reasons and actions.

How to use it:

    from neurontools.model import health

    verdicts = health.verdicts(snapshot)
    for verdict in verdicts:
        verdict.device_index, verdict.severity, verdict.is_healthy   # Severity.OK without findings
        for finding in verdict.findings:                              # highest severity first
            finding.kind, finding.severity, finding.reason, finding.action, finding.pid, finding.neuroncore_index
            health.age_seconds(finding, snapshot)                     # the age of the finding
    health.is_healthy(verdicts)                                       # no finding exceeds a notice

The daemon derives findings once per tick and puts them into each snapshot. `severity` and `is_healthy` are None if the
health is unknown: in snapshots of old daemons, and for a device whose health the driver does not report.

An idle device is a notice: wasteful, but not broken. A device with a finding above a notice is unhealthy.
"""

from neurontools.model.finding import Finding, FindingKind, Severity
from neurontools.model.health import Verdict, age_seconds, is_healthy, sentence, summary, verdicts

__all__ = [
    "Finding",
    "FindingKind",
    "Severity",
    "Verdict",
    "age_seconds",
    "is_healthy",
    "sentence",
    "summary",
    "verdicts",
]
