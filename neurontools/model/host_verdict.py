"""One verdict on a host, from what the daemon has found: for programs that drain, replace or alert."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import health, problems
from neurontools.model.finding import Finding, Health, Kind, Severity
from neurontools.model.problems import Owner
from neurontools.util.units import ranges_text

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class Asked:
    """What counts: findings at least so grave, of these owners, and of these names; `names` None: of all."""

    level: Severity = Severity.WARNING
    owners: Collection[Owner] = (Owner.NODE, Owner.USER)
    names: Collection[str] | None = None
    expected_devices: int | None = None  # fewer are a finding; None: as many as there should be as far as is known

    def counts(self, finding: Finding) -> bool:
        """Whether this finding makes the host unhealthy."""
        return (
            finding.severity >= self.level
            and problems.owner(finding) in self.owners
            and (self.names is None or problems.name(finding) in self.names)
        )


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """The verdict: `is_healthy` None is not known. `findings` are all those that count, gravest first."""

    is_healthy: bool | None
    findings: tuple[Finding, ...]
    summary: str  # a sentence without an end mark
    device_count: int | None = None  # of the devices that were judged; None: not known

    @property
    def severity(self) -> Severity | None:
        """That of the gravest finding that counts; None when it is not known that there are none."""
        return max((finding.severity for finding in self.findings), default=Severity.OK if self.is_healthy else None)

    @property
    def sentence(self) -> str:
        """The gravest finding with its place and what to do, where else it is, and how many more; else the summary."""
        if not self.findings:
            return self.summary
        first, groups = self.findings[0], health.alike(self.findings)
        devices = next(devices for finding, devices in groups if finding is first)
        elsewhere = _devices([index for index in devices if index not in first.device_indices])
        further = [f"alike on {elsewhere}"] if elsewhere else []
        if len(groups) > 1:
            further.append(f"and {len(groups) - 1} more")
        besides = f" ({', '.join(further)})" if further else ""
        return f"{place(first)}{health.marked_reason(first)}; {first.action}{besides}"


def host_verdict(judged: Health | None, daemon_version: str, at_unix_seconds: float, asked: Asked) -> HostVerdict:
    """The verdict by what a daemon of this version has judged at this time; `judged` None: it makes no verdicts."""
    if judged is None:
        return not_known(f"neurond {daemon_version or 'of an unknown version'} makes no verdicts; update it")
    found = list(judged.findings)
    count = len(judged.device_indices)
    if asked.expected_devices is not None and count < asked.expected_devices:
        found.insert(0, _too_few(count, asked.expected_devices, at_unix_seconds))
    counted = [finding for finding in found if asked.counts(finding)]
    verdicts = health.of_health(Health(judged.device_indices, judged.unknown_device_indices, tuple(counted)))
    of_all = health.of_health(judged)
    told = health.told(of_all, is_judged=True, daemon_version=daemon_version)
    if health.is_healthy(of_all) is False:
        told = f"no problem that counts here; otherwise {told}"
    is_healthy = False if counted else health.is_healthy(verdicts) if verdicts else None
    findings = sorted(counted, key=lambda finding: (-finding.severity, finding.device_indices))
    return HostVerdict(is_healthy, tuple(findings), told, count)


def no_devices(asked: Asked, at_unix_seconds: float) -> HostVerdict:
    """The verdict where neither a daemon nor the driver shows any device."""
    nothing = "no Neuron device on this host and no monitor daemon; is the driver loaded (modprobe neuron)?"
    if asked.expected_devices:
        missing = _too_few(0, asked.expected_devices, at_unix_seconds)
        if asked.counts(missing):
            return HostVerdict(False, (missing,), nothing, 0)
    return not_known(nothing)


def not_known(why: str) -> HostVerdict:
    """Nothing can be said, for this reason."""
    return HostVerdict(None, (), why)


def place(finding: Finding) -> str:
    """Where it is, before its reason: "device 3: ", "" where it is about none."""
    devices = _devices(finding.device_indices)
    return f"{devices}: " if devices else ""


def _devices(indices: Sequence[int]) -> str:
    """ "device 3", "devices 0-2,5", "" of none."""
    return "" if not indices else f"device{'s' if len(indices) > 1 else ''} {ranges_text(indices)}"


def _too_few(count: int, expected: int, at_unix_seconds: float) -> Finding:
    return Finding(
        Kind.DEVICE_MISSING,
        Severity.CRITICAL,
        f"{count} of {expected} expected devices are there",
        "see dmesg for the driver's failure; stop and start the instance to get another host",
        at_unix_seconds,
    )
