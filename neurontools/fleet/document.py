"""A fleet as data: a JSON document, and CSV with one line per host.

Names of values contain their units, and null means unknown. A lost host keeps its last values; `age_seconds` is their
age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from neurontools.fleet.jobs import FleetJob, FleetStandstill, MissingRank, SlowFleetRank, StepSeconds
from neurontools.fleet.models import FleetModel
from neurontools.fleet.states import HostGroup, HostLink, HostState, combine_group, group_hosts
from neurontools.fleet.summary import DeviceCell, HostSummary, ModelTotals, SummaryFinding, SummaryJob
from neurontools.model import Severity
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.util.formats import csv_line, foreign_cell, json_text
from neurontools.util.units import rfc3339_text

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """One of the gravest findings of a host."""

    kind: str
    severity: str
    reason: str
    began_at: str | None
    neuron_devices: tuple[int, ...]
    job: str | None
    is_synthetic: bool
    is_injected: bool


@dataclass(frozen=True, slots=True)
class FleetDevice:
    neuron_device: int
    is_present: bool
    health: str | None
    utilization_ratio: float | None
    held_neuroncore_count: int | None


@dataclass(frozen=True, slots=True)
class FleetHostJob:
    """The part of a job that runs on one host. A host lists only its largest jobs."""

    name: str | None
    neuroncore_count: int
    rank_count: int
    world_size: int | None
    utilization_ratio: float | None
    steps_per_second: float | None
    requests_per_second: float | None  # None if the job serves no requests
    request_p99_seconds: float | None
    mfu_ratio: float | None
    run_id: str | None
    users: tuple[str, ...]  # users of the job, possibly not all
    user_count: int | None
    missing_ranks: tuple[int, ...]
    state: str
    state_seconds: float | None
    health: str


@dataclass(frozen=True, slots=True)
class FleetHost:
    """A host with its connection state and the values of its latest summary."""

    name: str
    place: str
    labels: dict[str, str]
    link: str  # connection state: live, lost, connecting or waiting
    trouble: str  # why the host is lost
    age_seconds: float | None
    clock_ahead_seconds: float | None
    health: str | None  # ok, or the highest severity: notice, warning or critical; None if unknown
    host_name: str | None
    instance_type: str | None
    instance_id: str | None
    ultraserver_id: str | None
    ultraserver_node_index: int | None
    source: str | None
    synthetic_load: str | None
    driver_version: str | None
    daemon_version: str | None
    taken_at: str | None
    critical_count: int | None
    warning_count: int | None
    notice_count: int | None
    neuroncore_count: int | None
    held_neuroncore_count: int | None
    busy_neuroncore_count: int | None
    free_neuroncore_count: int | None
    utilization_ratio: float | None
    flops_per_second: float | None
    mfu_ratio: float | None
    steps_per_second: float | None  # steps per second of the host's largest job that reports steps
    requests_per_second: float | None  # of all processes; None if they serve no requests
    request_p99_seconds: float | None  # recent request latency of the slowest process and model
    device_memory_used_bytes: int | None
    device_memory_bytes: int | None
    process_count: int | None
    job_count: int | None
    problem_count: int | None
    users: tuple[str, ...]  # users of the host's jobs, possibly not all
    user_count: int | None  # number of all users; None if unknown, or if the reader may not see users
    findings: tuple[FleetFinding, ...]  # the gravest findings, possibly not all
    devices: tuple[FleetDevice, ...]
    jobs: tuple[FleetHostJob, ...]  # the jobs with the most cores, possibly not all
    models: tuple[ModelTotals, ...]  # the served models with the most device memory, possibly not all
    model_count: int | None  # number of all served models


@dataclass(frozen=True, slots=True)
class FleetDocumentJob:
    """A job, merged from its parts on several hosts."""

    name: str
    run_id: str | None  # ID of the run across hosts; None if the launcher reports none
    users: tuple[str, ...]  # the users that the job's hosts report
    user_count: int | None  # number of all users; None if unknown
    hosts: tuple[str, ...]  # host names; empty if the feed does not know them
    host_count: int | None
    neuroncore_count: int
    rank_count: int
    world_size: int | None
    missing_ranks: tuple[MissingRank, ...]
    state: str  # state of the job: training, starting, compiling, waiting, stuck, serving or unknown
    state_seconds: float | None  # seconds in this state; if training or waiting, seconds since the last step
    utilization_ratio: float | None
    steps_per_second: float | None
    requests_per_second: float | None  # None if the job serves no requests
    request_p99_seconds: float | None
    mfu_ratio: float | None
    step_seconds: StepSeconds | None  # statistics of the latest step times, over the job's ranks
    slow_rank: SlowFleetRank | None  # the straggler
    standstill: FleetStandstill | None  # ranks that wait in a collective while no step completes
    health: str | None


@dataclass(frozen=True, slots=True)
class FleetDocumentGroup:
    """A group of hosts with a common property."""

    by: str
    value: str
    hosts: tuple[str, ...]
    live_host_count: int
    health: str | None  # the worst health of the group's live hosts
    neuroncore_count: int | None
    held_neuroncore_count: int | None
    busy_neuroncore_count: int | None
    free_neuroncore_count: int | None
    utilization_ratio: float | None
    mfu_ratio: float | None
    requests_per_second: float | None
    request_p99_seconds: float | None


@dataclass(frozen=True, slots=True)
class FleetDocument:
    schema_version: int
    taken_at: str
    hosts: tuple[FleetHost, ...]
    jobs: tuple[FleetDocumentJob, ...]
    models: tuple[FleetModel, ...]  # the served models that the live hosts list, by name
    groups: tuple[FleetDocumentGroup, ...]  # only with --group-by
    troubles: tuple[str, ...]  # problems with the names of hosts


_FROM_SUMMARY = tuple(
    field.name
    for field in fields(FleetHost)
    if field.name in HostSummary.__slots__ and field.name not in ("source", "findings", "devices", "jobs", "models")
)


def document(
    states: Sequence[HostState],
    now_seconds: float,
    now_unix_seconds: float,
    problems: Sequence[str] = (),
    group_by: str = "",
    *,
    jobs: Sequence[FleetJob],
    models: Sequence[FleetModel],
) -> FleetDocument:
    """Builds the document of a fleet, with the hosts in the given order.

    `now_seconds` is time.monotonic(); `group_by` is one of `grouping_choices`.
    """
    return FleetDocument(
        schema_version=SCHEMA_VERSION,
        taken_at=_time(now_unix_seconds) or "",
        hosts=tuple(_host(state, now_seconds) for state in states),
        jobs=tuple(map(_fleet_job, jobs)),
        models=tuple(models),
        groups=tuple(map(_group, group_hosts(states, group_by))) if group_by else (),
        troubles=tuple(problems),
    )


def document_json(fleet_document: FleetDocument, *, indent: int | None = None) -> str:
    return json_text(asdict(fleet_document), indent=indent)


_CSV_LEFT_OUT = ("findings", "devices", "jobs", "models", "labels")


def csv_text(fleet_document: FleetDocument | None) -> str:
    """Formats the hosts of a document as CSV lines without a header. Returns the CSV header if the document is None."""
    names = [field.name for field in fields(FleetHost) if field.name not in _CSV_LEFT_OUT]
    if fleet_document is None:
        return csv_line([*names, "worst", "labels"])
    lines = []
    for host in fleet_document.hosts:
        worst = host.findings[0].reason if host.findings else ""
        labels = " ".join(f"{name}={value}" for name, value in host.labels.items())
        cells = [_cell(getattr(host, name)) for name in names]
        lines.append(csv_line([*cells, foreign_cell(worst), foreign_cell(labels)]))
    return "".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return foreign_cell(" ".join(value))
    return foreign_cell(value) if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _host(state: HostState, now_seconds: float) -> FleetHost:
    found = state.summary
    summary_fields = {name: None if found is None else getattr(found, name) for name in _FROM_SUMMARY}
    summary_fields["instance_type"] = summary_fields["instance_type"] or None
    return FleetHost(
        name=state.place.name,
        place=state.place.text,
        labels=dict(state.place.labels),
        link=str(state.link),
        trouble=state.loss_reason,
        age_seconds=_rounded(state.age_seconds(now_seconds)),
        clock_ahead_seconds=None if found is None else _rounded(state.clock_ahead_seconds),
        health=_name(state.severity),
        source=None if found is None or found.source is None else str(found.source),
        taken_at=None if found is None else _time(found.taken_at_unix_seconds),
        steps_per_second=state.steps_per_second,
        users=() if found is None else found.users,
        findings=() if found is None else tuple(map(_finding, found.findings)),
        devices=() if found is None else tuple(map(_device, found.devices)),
        jobs=() if found is None else tuple(map(_job, found.jobs)),
        models=() if found is None else found.models,
        **summary_fields,
    )


def _finding(finding: SummaryFinding) -> FleetFinding:
    return FleetFinding(
        kind=finding.kind,
        severity=finding.severity.name.lower(),
        reason=finding.reason,
        began_at=_time(finding.began_at_unix_seconds),
        neuron_devices=finding.device_indices,
        job=finding.job,
        is_synthetic=finding.synthetic,
        is_injected=finding.injected,
    )


def _device(cell: DeviceCell) -> FleetDevice:
    return FleetDevice(
        neuron_device=cell.index,
        is_present=cell.is_present,
        health=None if cell.severity is None else Severity(cell.severity).name.lower(),
        utilization_ratio=cell.utilization_ratio,
        held_neuroncore_count=cell.held_neuroncore_count,
    )


def _job(job: SummaryJob) -> FleetHostJob:
    facts = {field.name: getattr(job, field.name) for field in fields(FleetHostJob) if field.name != "health"}
    return FleetHostJob(health=job.severity.name.lower(), **facts)


def _fleet_job(job: FleetJob) -> FleetDocumentJob:
    own = ("hosts", "health")
    facts = {field.name: getattr(job, field.name) for field in fields(FleetDocumentJob) if field.name not in own}
    return FleetDocumentJob(hosts=job.host_names, health=_name(job.severity), **facts)


def _group(group: HostGroup) -> FleetDocumentGroup:
    totals = combine_group(group)
    found = totals.summary
    return FleetDocumentGroup(
        by=group.by,
        value=group.value,
        hosts=tuple(state.place.name for state in group.states),
        live_host_count=sum(state.link is HostLink.LIVE for state in group.states),
        health=_name(totals.severity),
        **{
            field.name: None if found is None else getattr(found, field.name)
            for field in fields(FleetDocumentGroup)
            if field.name in _FROM_SUMMARY
        },
    )


def _name(severity: Severity | None) -> str | None:
    return None if severity is None else severity.name.lower()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _time(unix_seconds: float) -> str | None:
    if not 0 < unix_seconds < LATEST_UNIX_SECONDS:
        return None
    return rfc3339_text(unix_seconds)
