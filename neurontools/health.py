"""Health: what the daemon has found wrong, for each device, with the reasons and what to do about them.

How to use it:

    from neurontools.model import health

    verdicts = health.verdicts(snapshot)
    for verdict in verdicts:
        verdict.device_index, verdict.severity, verdict.is_healthy   # Severity.OK when there are no findings
        for finding in verdict.findings:                              # gravest first
            finding.kind, finding.severity, finding.reason, finding.action, finding.pid, finding.neuroncore_index
            health.age_seconds(finding, snapshot)                     # how long it has lasted
    health.is_healthy(verdicts)                                       # nothing is worse than a notice

The daemon judges, once a tick, from its whole past; a snapshot carries its verdicts, wherever it is read. One without
any (of an older daemon, an older recording) is not known to be well: `severity` and `is_healthy` are None then, as they
are for a device of which the driver tells nothing.

An idle device is a notice: a waste, but nothing is broken. Whatever is worse than a notice is unhealthy.
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
