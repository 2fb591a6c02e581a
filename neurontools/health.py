"""Tells which devices are healthy, and why others are not. A verdict has the daemon's findings on one device.

Example:

    from neurontools.model import health

    verdicts = health.verdicts(snapshot)
    for verdict in verdicts:
        verdict.device_index, verdict.severity, verdict.is_healthy   # Severity.OK if there are no findings
        for finding in verdict.findings:                              # highest severity first
            finding.kind, finding.severity, finding.reason, finding.action, finding.pid, finding.neuroncore_index
            health.age_seconds(finding, snapshot)                     # how long the finding has lasted
    health.is_healthy(verdicts)                                       # True if no finding is graver than a notice

The daemon derives findings once per tick and puts them into each snapshot. `severity` and `is_healthy` are None if the
health is unknown: in snapshots of old daemons, and for devices whose health the driver does not report.

A missing device has a verdict too. Findings that concern no device are in a last verdict with `device_index` None.

An idle device is only a notice, because nothing is broken. A device with a graver finding than a notice is unhealthy.
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
