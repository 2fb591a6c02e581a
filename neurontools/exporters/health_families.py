"""Families of our own about health: verdicts, findings with their reasons, what the driver tells of sick hardware."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.model import Health, Severity, Snapshot, logical_cores
from neurontools.model.health import age_seconds, verdicts
from neurontools.util.units import ranges_text

_DEVICE = "neuron_device_index"
_FINDING = (
    "finding",
    "severity",
    "neuron_devices",
    "part",
    "job_name",
    "pid",
    "synthetic",
    "injected",
    "reason",
    "action",
)
_ERRORS = (
    "hw_error",
    "hw_collectives_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "hw_repairable_hbm_ue_error",
)
_read_errors = attrgetter(*(f"{error}_total" for error in _ERRORS))
_RESETS = ("requested", "failed")

HEALTH = Definition(
    "neurontools_health",
    Kind.GAUGE,
    "Gravest finding of the host, which the label names: 0 none, 1 notice, 2 warning, 3 critical; absent: not known",
)
DEVICE_HEALTH = Definition(
    "neurontools_device_health",
    Kind.GAUGE,
    "Gravest finding: 0 none, 1 notice, 2 warning, 3 critical; absent: not known",
)
DEVICE_FINDINGS = Definition("neurontools_device_findings", Kind.GAUGE, "Findings on the device by kind and severity")
FINDING = Definition(
    "neurontools_finding_seconds", Kind.GAUGE, "For how long a finding has lasted; labels say what it is and what to do"
)
INJECTED_FAULT = Definition(
    "neurontools_injected_fault", Kind.GAUGE, "1 for each fault that was injected into simulated devices and not healed"
)
UNHEALTHY_COMPONENT = Definition(
    "neurontools_device_unhealthy_component", Kind.GAUGE, "1 for each part that the driver reports as unhealthy"
)
RESETS = Definition(
    "neurontools_device_resets", Kind.COUNTER, "Resets since the driver was loaded: those asked for, those that failed"
)
CORE_ERRORS = Definition(
    "neurontools_neuroncore_hardware_errors",
    Kind.COUNTER,
    "Errors of hardware that the driver counts for the NeuronCore, by its own names",
)


def health_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[Family]:
    """The families of a snapshot; nothing of what is not known, and of the driver nothing where it is simulated."""
    health: list[Sample] = []
    counts: dict[str, int] = {}
    of_device, of_kind = label.named(_DEVICE), label.named(_DEVICE, "kind", "severity")
    for verdict in verdicts(snapshot):
        severity = verdict.severity
        if severity is not None:
            health.append((of_device(verdict.device_index), int(severity)))
        for finding in verdict.findings:
            text = of_kind(verdict.device_index, finding.kind, finding.severity.name.lower())
            counts[text] = counts.get(text, 0) + 1
    yield Family(DEVICE_HEALTH, health)
    yield Family(DEVICE_FINDINGS, list(counts.items()))
    if snapshot.health is not None:
        yield from _finding_families(snapshot, snapshot.health, label)
    yield from _driver_families(snapshot, label)
    of_fault = label.named("fault", "kind", "state", "neuron_devices")
    injected = [
        (of_fault(fault.number, fault.kind, fault.state.name.lower(), ranges_text(fault.device_indices)), 1)
        for fault in snapshot.injected_faults
    ]
    yield Family(INJECTED_FAULT, injected)


def _finding_families(snapshot: Snapshot, judged: Health, label: LabelTexts) -> Iterator[Family]:
    of_host, of_finding = label.named("finding"), label.named(*_FINDING)
    gravest = judged.findings[0] if judged.findings else None
    severity = gravest.severity if gravest is not None else Severity.OK
    is_known = severity > Severity.NOTICE or not judged.unknown_device_indices
    kind = gravest.kind if gravest is not None else ""
    yield Family(HEALTH, [(of_host(kind), int(severity))] if is_known else [])
    found = [
        (
            of_finding(
                finding.kind,
                finding.severity.name.lower(),
                ranges_text(finding.device_indices),
                finding.part or "",
                finding.job or "",
                "" if finding.pid is None else finding.pid,
                "true" if finding.synthetic else "",
                "true" if finding.injected else "",
                finding.reason,
                finding.action,
            ),
            age_seconds(finding, snapshot),
        )
        for finding in judged.findings
    ]
    yield Family(FINDING, found)


def _driver_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[Family]:
    of_component = label.named(_DEVICE, "component")
    unhealthy: list[Sample] = [
        (of_component(device.index, component), 1)
        for device in snapshot.devices
        if device.reported_health is not None
        for component in device.reported_health.unhealthy_components
    ]
    errors: list[Sample] = []
    resets: dict[int, tuple[int, int]] = {}
    rows = label.rows("neuroncore", _DEVICE, "error", last=_ERRORS)
    for group in logical_cores(snapshot):
        told = [_read_errors(core.status) for core in group.cores if core.status is not None]
        if told:
            for text, each in zip(rows(group.index, group.device_index), zip(*told, strict=True), strict=True):
                known = [count for count in each if count is not None]
                errors += [(text, sum(known))] if known else []
        for core in group.cores:
            if core.reset_requests_total is not None and core.reset_failures_total is not None:
                asked, failed = resets.get(core.device_index, (0, 0))
                # A reset of the device is counted on each of its cores.
                resets[core.device_index] = (
                    max(asked, core.reset_requests_total),
                    max(failed, core.reset_failures_total),
                )
    reset_rows = label.rows(_DEVICE, "outcome", last=_RESETS)
    yield Family(UNHEALTHY_COMPONENT, unhealthy)
    yield Family(CORE_ERRORS, errors)
    yield Family(
        RESETS,
        [pair for index, both in resets.items() for pair in zip(reset_rows(index), both, strict=True)],
    )
