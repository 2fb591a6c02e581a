"""Derives verdicts from the findings: whether each device, and the whole host, is healthy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from neurontools.model.finding import Finding, FindingKind, Health, Severity
from neurontools.util.units import duration_text, ranges_text

TYPE_CHECKING = False  # not imported, because importing `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Protocol

    from neurontools.model.snapshot import Snapshot

    class MarkedFinding(Protocol):
        """A finding of a snapshot, or its copy in the summary of a host."""

        @property
        def reason(self) -> str:
            """Why the finding exists, as a sentence."""

        @property
        def synthetic(self) -> bool:
            """Whether the affected processes are those of a synthetic load."""

        @property
        def injected(self) -> bool:
            """Whether injected faults caused the finding."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one device, or on the host. A device without findings is healthy, unless its health is unknown."""

    device_index: int | None  # None: the findings concern the host, and no device
    findings: tuple[Finding, ...] = ()  # highest severity first
    is_known: bool = True
    unknown_reason: str | None = None  # why the health is unknown, such as the file that could not be read

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the findings. None if the health is unknown and no finding exceeds a notice."""
        gravest = max((finding.severity for finding in self.findings), default=Severity.OK)
        return gravest if self.is_known or gravest > Severity.NOTICE else None

    @property
    def is_healthy(self) -> bool | None:
        """Whether no finding on the device exceeds a notice. None if its health is unknown."""
        severity = self.severity
        return None if severity is None else severity <= Severity.NOTICE

    @property
    def severity_name(self) -> str | None:
        """The severity as "ok", "notice", "warning" or "critical". None if the health is unknown."""
        severity = self.severity
        return None if severity is None else severity.name.lower()


def verdicts(snapshot: Snapshot) -> tuple[Verdict, ...]:
    """Returns a verdict for each present or missing device of a snapshot, in the order of the index.

    If there are findings that concern no device, the last verdict has them.
    """
    if snapshot.health is None:
        return tuple(Verdict(index, is_known=False) for index in snapshot.devices_by_index)
    return verdicts_of_health(snapshot.health)


def verdicts_of_health(judged: Health) -> tuple[Verdict, ...]:
    """Returns a verdict for each checked device, present or missing, in the order of the index.

    If there are findings that concern no device, the last verdict has them.
    """
    found: dict[int, list[Finding]] = {index: [] for index in judged.device_indices}
    for finding in judged.findings:
        for index in finding.device_indices:
            if index in found:
                found[index].append(finding)
    unknown = judged.unknown_devices
    on_devices = [
        Verdict(index, tuple(findings), index not in unknown, unknown.get(index))
        for index, findings in sorted(found.items())
    ]
    on_host = tuple([finding for finding in judged.findings if not finding.device_indices])
    return (*on_devices, *([Verdict(None, on_host)] if on_host else ()))


def is_healthy(found: Iterable[Verdict]) -> bool | None:
    """Returns whether all devices are healthy. None if none is unhealthy, and the health of some is unknown, or there
    are none.
    """
    states = {verdict.is_healthy for verdict in found}
    return False if False in states else None if None in states or not states else True


def group_alike(findings: Iterable[Finding]) -> list[tuple[Finding, tuple[int, ...]]]:
    """Groups findings with the same kind, severity, action, process and job.

    Returns the first finding of each group, with the device indices of the whole group, highest severity first.
    """
    found: dict[tuple[object, ...], tuple[Finding, set[int]]] = {}
    for finding in findings:
        key = (finding.kind, finding.severity, finding.action, finding.pid, finding.job)
        found.setdefault(key, (finding, set()))[1].update(finding.device_indices)
    groups = [(finding, tuple(sorted(devices))) for finding, devices in found.values()]
    return sorted(groups, key=lambda item: (-item[0].severity, item[1]))


def fold_equal(findings: Iterable[Finding]) -> list[Finding]:
    """Folds findings that differ only in their devices into one with all these devices, highest severity first."""
    found: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.kind, finding.severity, marked_reason(finding), finding.action, finding.pid, finding.job)
        known = found.get(key)
        if known is not None:
            indices = tuple(sorted({*known.device_indices, *finding.device_indices}))
            began_at = min(known.began_at_unix_seconds, finding.began_at_unix_seconds)
            known = replace(known, device_indices=indices, began_at_unix_seconds=began_at, neuroncore_index=None)
        found[key] = known or finding
    return sorted(found.values(), key=lambda finding: (-finding.severity, finding.device_indices))


def count_devices_by_severity(snapshot: Snapshot) -> dict[Severity, int]:
    """Counts the devices, and the host, by the severity of their worst finding."""
    severities = [verdict.severity for verdict in verdicts(snapshot)]
    return {severity: severities.count(severity) for severity in Severity if severity in severities}


def count_by_severity(snapshot: Snapshot) -> dict[Severity, int]:
    """Counts the groups of similar findings (see `group_alike`) by severity."""
    severities = [finding.severity for finding, _ in group_alike(snapshot.health.findings if snapshot.health else ())]
    return {severity: severities.count(severity) for severity in Severity if severity in severities}


def age_seconds(finding: Finding, snapshot: Snapshot) -> float:
    """Returns the age of a finding in seconds at the time of the snapshot."""
    return max(0.0, snapshot.taken_at_unix_seconds - finding.began_at_unix_seconds)


def marked_reason(finding: MarkedFinding) -> str:
    """Returns the finding's reason, with "[synthetic]" for a synthetic load and "[injected]" for injected faults."""
    synthetic, injected = " [synthetic]" if finding.synthetic else "", " [injected]" if finding.injected else ""
    return f"{finding.reason}{synthetic}{injected}"


def sentence(finding: Finding, snapshot: Snapshot) -> str:
    """Returns one line with the reason of a finding, marks such as "[injected]", and its age."""
    seconds = age_seconds(finding, snapshot)
    return marked_reason(finding) + (f" (for {duration_text(float(round(seconds)))})" if seconds >= 1 else "")


def summary(found: Sequence[Verdict], snapshot: Snapshot) -> str:
    """Summarizes the verdicts in one line: "all 16 devices are healthy", "2 of 16 devices unhealthy"."""
    return summarize_verdicts(found, is_judged=snapshot.health is not None, daemon_version=snapshot.daemon_version)


def no_verdicts_text(daemon_version: str | None) -> str:
    """Returns the reason why a neurond of this version gives no verdicts. None and "" are an unknown version."""
    return f"neurond {daemon_version or 'of an unknown version'} makes no verdicts"


def summarize_verdicts(found: Sequence[Verdict], *, is_judged: bool, daemon_version: str) -> str:
    """Summarizes the verdicts in one line. `is_judged` is whether the daemon of `daemon_version` derives findings."""
    on_devices = [verdict for verdict in found if verdict.device_index is not None]
    count = len(on_devices)
    unhealthy = sum(verdict.is_healthy is False for verdict in on_devices)
    reasons = [verdict.unknown_reason for verdict in on_devices if verdict.is_healthy is None]
    unknown = len(reasons)
    is_host_unhealthy = any(verdict.is_healthy is False for verdict in found if verdict.device_index is None)
    if not count and not is_host_unhealthy:
        return "no device to judge"
    if not unhealthy and not unknown and not is_host_unhealthy:
        return "1 device is healthy" if count == 1 else f"all {count} devices are healthy"
    parts = ["the host is unhealthy"] if is_host_unhealthy else []
    parts += [f"{unhealthy} of {count} devices unhealthy"] if unhealthy else []
    if unknown:
        why = reasons[0] if is_judged else no_verdicts_text(daemon_version)
        others = unknown - reasons.count(reasons[0])
        more = f"; {others} more for other reasons" if others else ""
        parts.append(f"health of {unknown} of {count} devices not known: {why}{more}")
    return "; ".join(parts)


class Owner(StrEnum):
    """Who has to act on a finding: the operator of the node, or the user who runs jobs on the node."""

    NODE = "node"
    USER = "user"


# Maps the kind and part of a finding (None: any part) to its name and owner.
_TABLE: dict[tuple[str, str | None], tuple[str, Owner]] = {
    (FindingKind.DEVICE_MISSING, None): ("DEVICE_MISSING", Owner.NODE),
    (FindingKind.ECC_UNCORRECTED, "sram"): ("SRAM_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.ECC_UNCORRECTED, "hbm"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.ECC_REPAIRABLE, None): ("HBM_REPAIRABLE_ERROR", Owner.NODE),
    (FindingKind.ECC_CORRECTED, None): ("ECC_CORRECTED", Owner.NODE),
    (FindingKind.UNHEALTHY_COMPONENT, None): ("UNHEALTHY_COMPONENT", Owner.NODE),
    (FindingKind.CORE_ERRORS, "hw_nc_ue_error"): ("NC_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.CORE_ERRORS, "hw_hbm_ue_error"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.CORE_ERRORS, "hw_repairable_hbm_ue_error"): ("HBM_REPAIRABLE_ERROR", Owner.NODE),
    (FindingKind.CORE_ERRORS, "hw_dma_abort_error"): ("DMA_ERROR", Owner.NODE),
    # The cause of a collectives error is on another rank.
    (FindingKind.CORE_ERRORS, "hw_collectives_error"): ("COLLECTIVES_ERROR", Owner.USER),
    (FindingKind.CORE_ERRORS, "timeout"): ("EXECUTION_TIMEOUT", Owner.USER),
    (FindingKind.CORE_ERRORS, "oob_error"): ("EXECUTION_ERROR", Owner.USER),
    (FindingKind.CORE_ERRORS, "execute_sw_nq_overflow"): ("EXECUTION_ERROR", Owner.USER),
    (FindingKind.CORE_ERRORS, None): ("HARDWARE_ERROR", Owner.NODE),
    (FindingKind.RESET_FAILED, None): ("RESET_FAILED", Owner.NODE),
    (FindingKind.NEEDS_RESET, None): ("NEEDS_RESET", Owner.NODE),
    (FindingKind.HARDWARE_ERRORS, None): ("HARDWARE_ERROR", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "SRAM_UNCORRECTABLE_ERROR"): ("SRAM_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "NC_UNCORRECTABLE_ERROR"): ("NC_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "HBM_UNCORRECTABLE_ERROR"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "DMA_ERROR"): ("DMA_ERROR", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "dma_timeout"): ("DMA_TIMEOUT", Owner.NODE),
    (FindingKind.KERNEL_ERROR, "reset_failed"): ("RESET_FAILED", Owner.NODE),
    (FindingKind.KERNEL_ERROR, None): ("HARDWARE_ERROR", Owner.NODE),
    (FindingKind.WAS_RESET, None): ("WAS_RESET", Owner.NODE),
    (FindingKind.TEST_FAILED, None): ("TEST_FAILED", Owner.NODE),
    (FindingKind.STUCK, None): ("HANG", Owner.USER),
    (FindingKind.NUMERICAL_ERRORS, None): ("NUMERICAL_ERROR", Owner.USER),
    (FindingKind.FAILED_EXECUTIONS, "timeout"): ("EXECUTION_TIMEOUT", Owner.USER),
    (FindingKind.FAILED_EXECUTIONS, None): ("EXECUTION_ERROR", Owner.USER),
    (FindingKind.MEMORY_NEARLY_FULL, None): ("MEMORY_NEARLY_FULL", Owner.USER),
    (FindingKind.STALE_REPORT, None): ("STALE_REPORT", Owner.USER),
    (FindingKind.LATENCY_RISEN, None): ("LATENCY_RISEN", Owner.USER),
    (FindingKind.SLOW_RANK, None): ("SLOW_RANK", Owner.USER),
    (FindingKind.WAITING, None): ("WAITING", Owner.USER),
    (FindingKind.CORES_WITHOUT_MODEL, None): ("CORES_WITHOUT_MODEL", Owner.USER),
    (FindingKind.DUPLICATED_WEIGHTS, None): ("DUPLICATED_WEIGHTS", Owner.USER),
    (FindingKind.IDLE, None): ("IDLE", Owner.USER),
    (FindingKind.ORPHANED, None): ("ORPHANED", Owner.USER),
}

FINDING_NAMES = tuple(dict.fromkeys(name for name, _ in _TABLE.values()))
"""All names of findings, each once."""


def finding_name(finding: Finding) -> str:
    """Returns the name of a finding in capitals, such as HBM_UNCORRECTABLE_ERROR or NEEDS_RESET."""
    return _name_and_owner(finding)[0]


def finding_owner(finding: Finding) -> Owner:
    """Returns who has to act on a finding: the operator of the node or the user."""
    return _name_and_owner(finding)[1]


def describe_finding(finding: Finding) -> dict[str, object]:
    """Returns a finding as a JSON object for other programs, with its name and owner."""
    return {
        "name": finding_name(finding),
        "problem": str(finding_owner(finding)),
        "kind": str(finding.kind),
        "severity": finding.severity.name.lower(),
        "reason": finding.reason,
        "action": finding.action,
        "began_at_unix_seconds": finding.began_at_unix_seconds,
        "device_indices": list(finding.device_indices),
        "neuroncore_index": finding.neuroncore_index,
        "part": finding.part,
        "pid": finding.pid,
        "pids": list(finding.pids),
        "job": finding.job,
        "synthetic": finding.synthetic,
        "injected": finding.injected,
    }


def _name_and_owner(finding: Finding) -> tuple[str, Owner]:
    """Returns the name and owner of a finding. For an unknown kind the owner is the user, so no node is drained."""
    found = _TABLE.get((finding.kind, finding.part)) or _TABLE.get((finding.kind, None))
    return found or (finding.kind.upper(), Owner.USER)


@dataclass(frozen=True, slots=True)
class HealthCriteria:
    """Selects the findings that make a host unhealthy, by minimum severity, owner and name (None: all names)."""

    level: Severity = Severity.WARNING
    owners: Collection[Owner] = (Owner.NODE, Owner.USER)
    names: Collection[str] | None = None
    expected_devices: int | None = None  # fewer devices than this number count as a finding; None: no check

    def includes(self, finding: Finding) -> bool:
        """Returns whether a finding makes the host unhealthy."""
        return (
            finding.severity >= self.level
            and finding_owner(finding) in self.owners
            and (self.names is None or finding_name(finding) in self.names)
        )


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """The verdict on a host. `findings` are the findings that match the criteria, highest severity first."""

    is_healthy: bool | None  # None: unknown
    findings: tuple[Finding, ...]
    summary: str  # one sentence on the host's health, without a full stop
    device_count: int | None = None  # number of checked devices; None: unknown

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the matching findings. None if the health is unknown."""
        return max((finding.severity for finding in self.findings), default=Severity.OK if self.is_healthy else None)

    @property
    def severity_word(self) -> str:
        """The severity in words: "ok", "notice", "warning", "critical" or "unknown"."""
        return "unknown" if self.severity is None else self.severity.name.lower()

    @property
    def sentence(self) -> str:
        """The first finding with its devices and action, and the number of further findings; else `summary`."""
        if not self.findings:
            return self.summary
        first, groups = self.findings[0], group_alike(self.findings)
        devices = next(devices for finding, devices in groups if finding is first)
        elsewhere = _devices([index for index in devices if index not in first.device_indices])
        further = [f"alike on {elsewhere}"] if elsewhere else []
        if len(groups) > 1:
            further.append(f"and {len(groups) - 1} more")
        besides = f" ({', '.join(further)})" if further else ""
        return f"{finding_location(first)}{marked_reason(first)}; {first.action}{besides}"


def judge_host(
    judged: Health | None, daemon_version: str, at_unix_seconds: float, criteria: HealthCriteria
) -> HostVerdict:
    """Returns the verdict on a host from its findings. `judged` is None if the daemon derives no findings."""
    if judged is None:
        return unknown_verdict(f"{no_verdicts_text(daemon_version)}; update it")
    found = list(judged.findings)
    count = len(judged.device_indices)
    if criteria.expected_devices is not None and count < criteria.expected_devices:
        found.insert(0, _too_few(count, criteria.expected_devices, at_unix_seconds))
    counted = [finding for finding in found if criteria.includes(finding)]
    by_device = verdicts_of_health(replace(judged, findings=tuple(counted)))
    of_all = verdicts_of_health(judged)
    words = summarize_verdicts(of_all, is_judged=True, daemon_version=daemon_version)
    if is_healthy(of_all) is False:
        words = f"no problem that counts here; otherwise {words}"
    is_well = False if counted else is_healthy(by_device) if by_device else None
    findings = sorted(counted, key=_precedence)
    return HostVerdict(is_well, tuple(findings), words, count)


def _precedence(finding: Finding) -> tuple[int, tuple[int, ...], int]:
    """Sorts findings. A part of the device, such as its SRAM, precedes the NeuronCores that failed because of it."""
    return -finding.severity, finding.device_indices, FINDING_NAMES.index(finding_name(finding))


def no_devices_verdict(criteria: HealthCriteria, at_unix_seconds: float) -> HostVerdict:
    """Returns the verdict on a host without a daemon and without devices."""
    nothing = "no Neuron device on this host and no monitor daemon; is the driver loaded (modprobe neuron)?"
    if criteria.expected_devices:
        missing = _too_few(0, criteria.expected_devices, at_unix_seconds)
        if criteria.includes(missing):
            return HostVerdict(False, (missing,), nothing, 0)
    return unknown_verdict(nothing)


def unknown_verdict(why: str) -> HostVerdict:
    """Returns a verdict of unknown health, with the reason as its summary."""
    return HostVerdict(None, (), why)


def finding_location(finding: Finding) -> str:
    """Returns the devices of a finding as a prefix for its reason, "device 3: "; "" if it concerns no device."""
    devices = _devices(finding.device_indices)
    return f"{devices}: " if devices else ""


def _devices(indices: Sequence[int]) -> str:
    """Formats device indices as "device 3" or "devices 0-2,5"; "" if there are none."""
    return "" if not indices else f"device{'s' if len(indices) > 1 else ''} {ranges_text(indices)}"


def _too_few(count: int, expected: int, at_unix_seconds: float) -> Finding:
    return Finding(
        FindingKind.DEVICE_MISSING,
        Severity.CRITICAL,
        f"{count} of {expected} expected devices are there",
        "see dmesg for the driver's failure; stop and start the instance to get another host",
        at_unix_seconds,
    )
