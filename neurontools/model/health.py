"""Verdicts on devices: the findings that the daemon published, grouped by device and put into words."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.finding import Finding, Health, Severity
from neurontools.util.units import duration_text

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one device. Without findings it is well, if its health is known at all."""

    device_index: int
    findings: tuple[Finding, ...] = ()  # gravest first
    is_known: bool = True

    @property
    def severity(self) -> Severity | None:
        """That of the gravest finding; None when the health is not known and nothing worse than a notice was found."""
        gravest = max((finding.severity for finding in self.findings), default=Severity.OK)
        return gravest if self.is_known or gravest > Severity.NOTICE else None

    @property
    def is_healthy(self) -> bool | None:
        """Whether nothing is worse than a notice; None: not known."""
        severity = self.severity
        return None if severity is None else severity <= Severity.NOTICE

    @property
    def severity_name(self) -> str | None:
        """ "ok", "notice", "warning" or "critical"; None: not known."""
        severity = self.severity
        return None if severity is None else severity.name.lower()


def verdicts(snapshot: Snapshot) -> tuple[Verdict, ...]:
    """A verdict for each device that is there or is missing, by index."""
    if snapshot.health is None:
        return tuple(Verdict(device.index, is_known=False) for device in snapshot.devices)
    return of_health(snapshot.health)


def of_health(judged: Health) -> tuple[Verdict, ...]:
    """A verdict for each device that was judged, by index."""
    found: dict[int, list[Finding]] = {index: [] for index in judged.device_indices}
    for finding in judged.findings:
        for index in finding.device_indices:
            if index in found:
                found[index].append(finding)
    unknown = set(judged.unknown_device_indices)
    return tuple(Verdict(index, tuple(findings), index not in unknown) for index, findings in sorted(found.items()))


def is_healthy(found: Iterable[Verdict]) -> bool | None:
    """Whether all devices are; None: none is known not to be, and not all are known."""
    told = {verdict.is_healthy for verdict in found}
    return False if False in told else None if None in told else True


def alike(findings: Iterable[Finding]) -> list[tuple[Finding, tuple[int, ...]]]:
    """Findings, gravest first, with their devices; those of one kind that ask for the same are one, as of the first."""
    found: dict[tuple[object, ...], tuple[Finding, set[int]]] = {}
    for finding in findings:
        key = (finding.kind, finding.severity, finding.action, finding.pid, finding.job)
        found.setdefault(key, (finding, set()))[1].update(finding.device_indices)
    told = [(finding, tuple(sorted(devices))) for finding, devices in found.values()]
    return sorted(told, key=lambda item: (-item[0].severity, item[1]))


def counts(snapshot: Snapshot) -> dict[Severity, int]:
    """How many things are wrong, by how grave they are; those that are alike are one."""
    severities = [finding.severity for finding, _ in alike(snapshot.health.findings if snapshot.health else ())]
    return {severity: severities.count(severity) for severity in Severity if severity in severities}


def age_seconds(finding: Finding, snapshot: Snapshot) -> float:
    """How long a finding had lasted when the snapshot was taken."""
    return max(0.0, snapshot.taken_at_unix_seconds - finding.began_at_unix_seconds)


def marked_reason(finding: Finding) -> str:
    """The reason; it says when invented processes or injected faults are behind it."""
    synthetic, injected = " [synthetic]" if finding.synthetic else "", " [injected]" if finding.injected else ""
    return f"{finding.reason}{synthetic}{injected}"


def sentence(finding: Finding, snapshot: Snapshot) -> str:
    """The marked reason and how long it has lasted: one line for people."""
    seconds = age_seconds(finding, snapshot)
    return marked_reason(finding) + (f" (for {duration_text(float(round(seconds)))})" if seconds >= 1 else "")


def summary(found: Sequence[Verdict], snapshot: Snapshot) -> str:
    """The verdicts in one line: "all 16 devices are healthy", "2 of 16 devices unhealthy", and what is not known."""
    return told(found, is_judged=snapshot.health is not None, daemon_version=snapshot.daemon_version)


def told(found: Sequence[Verdict], *, is_judged: bool, daemon_version: str) -> str:
    """`summary` of verdicts that a daemon of this version has made, or of devices that it has not judged."""
    count = len(found)
    unhealthy = sum(verdict.is_healthy is False for verdict in found)
    unknown = sum(verdict.is_healthy is None for verdict in found)
    if not count:
        return "no device to judge"
    if not unhealthy and not unknown:
        return "1 device is healthy" if count == 1 else f"all {count} devices are healthy"
    parts = [f"{unhealthy} of {count} devices unhealthy"] if unhealthy else []
    if unknown:
        version = daemon_version or "of an unknown version"
        why = "the driver tells nothing of it" if is_judged else f"neurond {version} makes no verdicts"
        parts.append(f"health of {unknown} of {count} devices not known: {why}")
    return "; ".join(parts)
