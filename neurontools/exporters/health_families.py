"""Metric families neurontools_… about health: severities, findings, and the driver's error counters."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from neurontools.exporters.exposition import FamilyDefinition, LabelTexts, MetricFamily, MetricKind, Sample
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

HEALTH = FamilyDefinition(
    "neurontools_health",
    MetricKind.GAUGE,
    "Highest severity of a finding of the host, which the label names: 0 none, 1 notice, 2 warning, 3 critical; "
    "absent: unknown",
)
DEVICE_HEALTH = FamilyDefinition(
    "neurontools_device_health",
    MetricKind.GAUGE,
    "Highest severity of a finding: 0 none, 1 notice, 2 warning, 3 critical; absent: unknown",
)
DEVICE_FINDINGS = FamilyDefinition(
    "neurontools_device_findings", MetricKind.GAUGE, "Findings on the device by kind and severity"
)
FINDING = FamilyDefinition(
    "neurontools_finding_seconds",
    MetricKind.GAUGE,
    "Age of a finding; the labels have its kind, reason and action",
)
INJECTED_FAULT = FamilyDefinition(
    "neurontools_injected_fault",
    MetricKind.GAUGE,
    "1 for each injected fault of simulated devices that is not healed",
)
UNHEALTHY_COMPONENT = FamilyDefinition(
    "neurontools_device_unhealthy_component", MetricKind.GAUGE, "1 for each part that the driver reports as unhealthy"
)
RESETS = FamilyDefinition(
    "neurontools_device_resets",
    MetricKind.COUNTER,
    "Resets since the driver was loaded, requested and failed",
)
CORE_ERRORS = FamilyDefinition(
    "neurontools_neuroncore_hardware_errors",
    MetricKind.COUNTER,
    "Hardware errors that the driver counts for the NeuronCore, by the driver's names",
)


def health_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[MetricFamily]:
    """Yields the health families of a snapshot. Unknown values have no samples.

    On simulated hosts, the families of the driver's counters have no samples.
    """
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
    yield MetricFamily(DEVICE_HEALTH, health)
    yield MetricFamily(DEVICE_FINDINGS, list(counts.items()))
    if snapshot.health is not None:
        yield from _finding_families(snapshot, snapshot.health, label)
    yield from _driver_families(snapshot, label)
    of_fault = label.named("fault", "kind", "state", "neuron_devices")
    injected = [
        (of_fault(fault.number, fault.kind, fault.state.name.lower(), ranges_text(fault.device_indices)), 1)
        for fault in snapshot.injected_faults
    ]
    yield MetricFamily(INJECTED_FAULT, injected)


def _finding_families(snapshot: Snapshot, health_state: Health, label: LabelTexts) -> Iterator[MetricFamily]:
    of_host, of_finding = label.named("finding"), label.named(*_FINDING)
    gravest = health_state.findings[0] if health_state.findings else None
    severity = gravest.severity if gravest is not None else Severity.OK
    is_certain = severity > Severity.NOTICE or not health_state.unknown_device_indices
    kind = gravest.kind if gravest is not None else ""
    yield MetricFamily(HEALTH, [(of_host(kind), int(severity))] if is_certain else [])
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
        for finding in health_state.findings
    ]
    yield MetricFamily(FINDING, found)


def _driver_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[MetricFamily]:
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
        readings = [_read_errors(core.status) for core in group.cores if core.status is not None]
        if readings:
            for text, each in zip(rows(group.index, group.device_index), zip(*readings, strict=True), strict=True):
                counts = [count for count in each if count is not None]
                errors += [(text, sum(counts))] if counts else []
        for core in group.cores:
            if core.reset_requests_total is not None and core.reset_failures_total is not None:
                requested, failed = resets.get(core.device_index, (0, 0))
                # The driver counts a reset of a device on each of its cores, so the highest count is the device's.
                resets[core.device_index] = (
                    max(requested, core.reset_requests_total),
                    max(failed, core.reset_failures_total),
                )
    reset_rows = label.rows(_DEVICE, "outcome", last=_RESETS)
    yield MetricFamily(UNHEALTHY_COMPONENT, unhealthy)
    yield MetricFamily(CORE_ERRORS, errors)
    yield MetricFamily(
        RESETS,
        [pair for index, both in resets.items() for pair in zip(reset_rows(index), both, strict=True)],
    )
