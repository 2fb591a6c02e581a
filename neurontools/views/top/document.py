"""What neuron-top shows, as data: a JSON document of our own, and CSV.

Names carry their units (`_bytes`, `_seconds`, `_ratio` of 0..1); null is unknown. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from neurontools import catalog
from neurontools.model import (
    DeviceMemory,
    HostMemory,
    Instance,
    Snapshot,
    health,
)
from neurontools.util.formats import csv_line, foreign_cell
from neurontools.util.formats import json_text as as_json
from neurontools.util.units import ranges_text, rfc3339_text
from neurontools.views.drawing.figures import Figures
from neurontools.views.host.document import TopCost, TopHost, top_cost, top_host
from neurontools.views.query.ended_report import EndedRow, ended_row
from neurontools.views.top.job import TopJob, job_part
from neurontools.views.top.process import TopProcess, process_part
from neurontools.views.usage.document import TopUser, top_users

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TopFinding:
    """One thing that is wrong with a device, and what to do."""

    kind: str
    severity: str
    reason: str
    action: str
    began_at: str | None
    pid: int | None
    neuroncore: int | None
    part: str | None
    job: str | None
    is_synthetic: bool
    is_injected: bool


@dataclass(frozen=True, slots=True)
class TopDevice:
    """One Neuron device."""

    neuron_device: int
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int
    connected_to: tuple[int, ...]
    mem_ecc_corrected_total: int | None
    mem_ecc_uncorrected_total: int | None
    sram_ecc_corrected_total: int | None
    sram_ecc_uncorrected_total: int | None
    health: str | None  # ok, notice, warning, critical; None: not known
    findings: tuple[TopFinding, ...]


@dataclass(frozen=True, slots=True)
class TopCore:
    """One logical NeuronCore under the host's default LNC."""

    neuroncore: int
    neuron_device: int
    owner_pids: tuple[int, ...]
    candidate_pids: tuple[int, ...]  # who has the device open and may hold it
    is_owner_inferred: bool
    utilization_ratio: float | None
    flops_per_second: float | None
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopUltraServer:
    """The UltraServer that the host is a node of."""

    id: str | None
    name: str | None
    node_index: int | None
    node_count: int | None
    links: str | None  # ring or switched
    inferred_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopDocument:
    """The state of one host at one moment, as `neuron-top --json` prints it."""

    schema_version: int
    taken_at: str
    sequence: int
    instance_type: str
    instance_id: str | None
    ultraserver: TopUltraServer | None
    source: str
    synthetic_load: str | None
    neuroncore_version: str | None
    logical_neuroncore_config: int
    mfu_peak_dtype: str
    average_utilization_ratio: float | None
    flops_per_second: float | None
    host: TopHost
    host_memory: HostMemory
    device_memory: DeviceMemory
    devices: tuple[TopDevice, ...]
    neuroncores: tuple[TopCore, ...]
    processes: tuple[TopProcess, ...]
    jobs: tuple[TopJob, ...]
    users: tuple[TopUser, ...]
    ended: tuple[EndedRow, ...]  # within the last minute; `neuron-ls --ended` has all that the daemon knows
    daemon_cost: TopCost
    warnings: tuple[str, ...]


def _ultraserver(instance: Instance) -> TopUltraServer | None:
    node = instance.ultraserver_node
    if node is None:
        return None
    return TopUltraServer(
        id=instance.ultraserver_id,
        name=node.name,
        node_index=node.index,
        node_count=node.node_count,
        links=node.links,
        inferred_fields=tuple(name for name in ("name", "node_count", "links") if name in node.inferred_fields),
    )


def document(snapshot: Snapshot, pids: Sequence[int] | None = None) -> TopDocument:
    """The document of a snapshot; only these processes, and the jobs that have one, are listed if `pids` is given."""
    figures = Figures(snapshot)
    instance = snapshot.instance
    chosen = [figure for pid, figure in figures.by_pid.items() if pids is None or pid in pids]
    verdicts = {verdict.device_index: verdict for verdict in health.verdicts(snapshot)}
    return TopDocument(
        schema_version=SCHEMA_VERSION,
        taken_at=rfc3339_text(snapshot.taken_at_unix_seconds),
        sequence=snapshot.sequence,
        instance_type=instance.instance_type,
        instance_id=instance.instance_id,
        ultraserver=_ultraserver(instance),
        source=str(snapshot.source),
        synthetic_load=snapshot.synthetic_load,
        neuroncore_version=instance.neuroncore_version,
        logical_neuroncore_config=instance.logical_neuroncore_config,
        mfu_peak_dtype=catalog.PEAK_DTYPE,
        average_utilization_ratio=figures.average_utilization(None),
        flops_per_second=figures.flops(None),
        host=top_host(snapshot.host),
        host_memory=figures.host_memory(None),
        device_memory=figures.device_memory(None),
        devices=tuple(_device(figures, device.index, verdicts) for device in snapshot.devices),
        neuroncores=tuple(
            TopCore(
                core.index,
                core.device_index,
                core.owner_pids,
                core.candidate_pids,
                core.is_owner_inferred,
                core.utilization_ratio,
                core.flops_per_second,
                core.memory.total_bytes,
            )
            for core in figures.cores
        ),
        processes=tuple(process_part(figure, snapshot.taken_at_seconds) for figure in chosen),
        jobs=tuple(
            job_part(job, snapshot, figures.peak_flops_per_core)
            for job in figures.jobs
            if pids is None or any(rank.process.pid in pids for rank in job.ranks)
        ),
        users=top_users(figures),
        ended=tuple(ended_row(ended) for ended in snapshot.ended),
        daemon_cost=top_cost(snapshot),
        warnings=snapshot.warnings,
    )


def _device(figures: Figures, index: int, verdicts: dict[int, health.Verdict]) -> TopDevice:
    device = figures.snapshot.devices[index]
    verdict = verdicts.get(device.index, health.Verdict(device.index, is_known=False))
    return TopDevice(
        neuron_device=device.index,
        utilization_ratio=figures.device_utilization[index],
        memory_used_bytes=figures.device_used_bytes[index],
        memory_total_bytes=device.memory_bytes,
        connected_to=device.connected_to,
        mem_ecc_corrected_total=device.ecc.mem_corrected_total,
        mem_ecc_uncorrected_total=device.ecc.mem_uncorrected_total,
        sram_ecc_corrected_total=device.ecc.sram_corrected_total,
        sram_ecc_uncorrected_total=device.ecc.sram_uncorrected_total,
        health=verdict.severity_name,
        findings=tuple(
            TopFinding(
                str(finding.kind),
                finding.severity.name.lower(),
                finding.reason,
                finding.action,
                rfc3339_text(finding.began_at_unix_seconds),
                finding.pid,
                finding.neuroncore_index,
                finding.part,
                finding.job,
                finding.synthetic,
                finding.injected,
            )
            for finding in verdict.findings
        ),
    )


def json_text(document_: TopDocument, *, indent: int | None = None) -> str:
    """A document as JSON; compact unless indented."""
    return as_json(asdict(document_), indent=indent)


_CSV_SKIPPED = ("training", "operators", "advice", "models")
CSV_COLUMNS = ("taken_at", *(field.name for field in fields(TopProcess) if field.name not in _CSV_SKIPPED))


def csv_text(document_: TopDocument | None) -> str:
    """The header for None, else a line for each process; lists are ranges such as 0-3, unknown is empty."""
    if document_ is None:
        return csv_line(CSV_COLUMNS)
    taken_at = document_.taken_at
    return "".join(
        csv_line((taken_at, *(_csv_cell(getattr(process, name)) for name in CSV_COLUMNS[1:])))
        for process in document_.processes
    )


def _csv_cell(value: object) -> object:
    if isinstance(value, str):
        return foreign_cell(value)
    if isinstance(value, tuple):
        return ranges_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
