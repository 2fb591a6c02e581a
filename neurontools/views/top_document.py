"""The state of a host as data: the output of `neuron-top --json` and `--csv`.

Field names end in their unit (`_bytes`, `_seconds`, `_ratio` of 0..1); null means unknown. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from neurontools import catalog
from neurontools.model import (
    Device,
    DeviceMemory,
    Disk,
    EccCounters,
    Finding,
    Host,
    HostMemory,
    Instance,
    LatencyPercentiles,
    NetworkInterface,
    OperatorTime,
    Process,
    RdmaPort,
    ScriptAdvice,
    ServedModel,
    ServedModelRates,
    Snapshot,
    TrainingRates,
    health,
)
from neurontools.model.jobs import RunningJob, job_activity
from neurontools.model.process import age_seconds
from neurontools.util.formats import copy_fields, csv_line, foreign_cell, json_text
from neurontools.util.process_text import script_text
from neurontools.util.units import optional_rfc3339_text, ranges_text, rfc3339_text
from neurontools.views.consumption import consumption, power_watts
from neurontools.views.drawing.figures import Figures, ProcessFigures
from neurontools.views.host_page import user_and_system_ratios
from neurontools.views.ls_reports import EndedRow, ended_row
from neurontools.views.process_table import reported_straggler
from neurontools.views.usage_page import user_totals

SCHEMA_VERSION = 1
_CSV_SKIPPED = ("training", "operators", "advice", "models", "served_models")


@dataclass(frozen=True, slots=True)
class TopModel:
    """A model that a process has loaded."""

    model_id: int
    name: str
    uuid: str
    is_running: bool
    neuroncores: tuple[int, ...]
    device_memory_bytes: int | None
    executions_total: int
    busy_seconds_total: float | None
    busy_ratio: float | None  # recent share of time in which the model was executing (0..1)


@dataclass(frozen=True, slots=True)
class TopProcess:
    """A process that holds NeuronCores or uses the Neuron runtime."""

    pid: int
    user: str | None
    uid: int | None
    tag: str
    command: str
    is_synthetic: bool
    is_reporting: bool
    neuroncores: tuple[int, ...]
    are_neuroncores_inferred: bool
    neuron_devices: tuple[int, ...]
    utilization_ratio: float | None
    flops_per_second: float | None
    mfu_ratio: float | None
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    resident_bytes: int | None
    vcpu_user_ratio: float | None
    vcpu_system_ratio: float | None
    executions_per_second: float | None
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    executions_completed_total: int | None
    executions_failed_total: int | None
    errors_total: int | None
    since_last_execution_seconds: float | None
    started_at: str | None
    attached_at: str | None
    job: str | None
    power_ratio: float | None  # share of the power of its devices; 1.0 is one device at its maximum
    power_watts: float | None
    energy_kwh: float | None
    cost_usd: float | None  # list price of its cores for the time that it has held them
    training: TopTraining | None
    operators: tuple[OperatorTime, ...]  # operators by time, longest first; the last, named "", sums up all others
    advice: tuple[ScriptAdvice, ...]  # advice from the runtime of this process, costliest first
    models: tuple[TopModel, ...]
    served_models: tuple[TopServedModel, ...]  # models that the process runs for requests


def process_part(figures: ProcessFigures, snapshot: Snapshot) -> TopProcess:
    """Converts a process of the snapshot to its form in the document."""
    process, now_seconds = figures.process, snapshot.taken_at_seconds
    latency = process.total_latency
    return copy_fields(
        TopProcess,
        consumption((process,), snapshot),
        process,
        is_synthetic=process.synthetic,
        is_reporting=process.reporting,
        neuroncores=process.neuroncore_indices,
        are_neuroncores_inferred="core_indices" in process.inferred_fields,
        neuron_devices=process.device_indices,
        utilization_ratio=figures.utilization_ratio,
        flops_per_second=figures.flops_per_second,
        mfu_ratio=figures.mfu_ratio,
        device_memory_bytes=figures.device_memory_bytes,
        host_memory_bytes=figures.host_memory_bytes,
        latency_p50_seconds=None if latency is None else latency.p50_seconds,
        latency_p99_seconds=None if latency is None else latency.p99_seconds,
        executions_completed_total=None if process.executions is None else process.executions.completed_total,
        executions_failed_total=figures.failed_executions_total,
        errors_total=figures.errors_total,
        since_last_execution_seconds=figures.since_last_execution_seconds,
        started_at=optional_rfc3339_text(process.started_at_unix_seconds),
        attached_at=optional_rfc3339_text(process.attached_at_unix_seconds),
        job=process.job_name,
        training=_training_part(process, now_seconds),
        models=tuple(
            copy_fields(
                TopModel,
                model,
                is_running=model.running,
                neuroncores=tuple(sorted({part.neuroncore_index for part in model.subgraphs})),
                device_memory_bytes=sum(part.device_memory.total_bytes or 0 for part in model.subgraphs),
            )
            for model in process.models
        ),
        served_models=tuple(_served_part(served, now_seconds) for served in process.served_models),
    )


@dataclass(frozen=True, slots=True)
class TopServedModel:
    """A model that a process runs for requests. Rates and latencies are of the last ten seconds."""

    name: str
    neuroncores: tuple[int, ...]
    placement_count: int  # how often the model is loaded, on all cores
    device_memory_bytes: int | None
    load_seconds: float | None  # longest duration of loading on a core
    has_application_requests: bool  # false: each call of the model counts as a request
    requests_total: int
    failed_requests_total: int
    requests_per_second: float | None
    calls_total: int
    calls_per_second: float | None
    samples_total: int
    batch_size: float | None
    queue_depth: int | None
    queue_wait_seconds: float | None
    queue_wait_seconds_total: float
    since_last_request_seconds: float | None
    total_latency: LatencyPercentiles | None  # of requests, from arrival to answer
    device_latency: LatencyPercentiles | None  # of calls, on the NeuronCore only
    tokens_total: int | None
    tokens_per_second: float | None
    time_to_first_token: LatencyPercentiles | None
    time_per_output_token: LatencyPercentiles | None


def _served_part(served: ServedModel, now_seconds: float) -> TopServedModel:
    return copy_fields(
        TopServedModel,
        served,
        served.rates or ServedModelRates(),
        neuroncores=served.neuroncore_indices,
        placement_count=len(served.placements),
        since_last_request_seconds=age_seconds(served.last_request_at_seconds, now_seconds),
    )


@dataclass(frozen=True, slots=True)
class TopFinding:
    """A finding on a device or the host. `reason` states the problem, `action` what to do."""

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
    neuron_device: int
    is_present: bool  # False: the driver does not show this device, which the host should have
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    connected_to: tuple[int, ...]
    mem_ecc_corrected_total: int | None
    mem_ecc_uncorrected_total: int | None
    sram_ecc_corrected_total: int | None
    sram_ecc_uncorrected_total: int | None
    power_average_ratio: float | None  # in the last full minute, of the maximum; simulated if the source is
    power_average_watts: float | None
    health: str | None  # "ok", "notice", "warning" or "critical"; None: unknown
    findings: tuple[TopFinding, ...]


@dataclass(frozen=True, slots=True)
class TopCore:
    """A logical NeuronCore under the host's default LNC."""

    neuroncore: int
    neuron_device: int
    owner_pids: tuple[int, ...]
    candidate_pids: tuple[int, ...]  # processes that may hold this core, because they have the device open
    is_owner_inferred: bool
    utilization_ratio: float | None
    flops_per_second: float | None
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopUltraServer:
    """The UltraServer that the host belongs to."""

    id: str | None
    name: str | None
    node_index: int | None
    node_count: int | None
    links: str | None  # how nodes are linked: "ring" or "switched"
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
    devices: tuple[TopDevice, ...]  # present and missing devices
    host_findings: tuple[TopFinding, ...]  # findings that concern no device
    neuroncores: tuple[TopCore, ...]
    processes: tuple[TopProcess, ...]
    jobs: tuple[TopJob, ...]
    users: tuple[TopUser, ...]
    ended: tuple[EndedRow, ...]  # processes that ended within the last minute; `neuron-ls --ended` has the full history
    daemon_cost: TopCost
    warnings: tuple[str, ...]


def _ultraserver_part(instance: Instance) -> TopUltraServer | None:
    node = instance.ultraserver_node
    if node is None:
        return None
    inferred = tuple(name for name in ("name", "node_count", "links") if name in node.inferred_fields)
    return copy_fields(
        TopUltraServer, node, id=instance.ultraserver_id, node_index=node.index, inferred_fields=inferred
    )


def top_document(snapshot: Snapshot, pids: Sequence[int] | None = None) -> TopDocument:
    """Converts a snapshot to its document. `pids` limits the lists of processes and jobs to these processes."""
    figures = Figures(snapshot)
    instance = snapshot.instance
    chosen = [figure for pid, figure in figures.by_pid.items() if pids is None or pid in pids]
    verdicts = {verdict.device_index: verdict for verdict in health.verdicts(snapshot)}
    return copy_fields(
        TopDocument,
        snapshot,
        instance,
        schema_version=SCHEMA_VERSION,
        taken_at=rfc3339_text(snapshot.taken_at_unix_seconds),
        ultraserver=_ultraserver_part(instance),
        source=str(snapshot.source),
        mfu_peak_dtype=catalog.PEAK_DTYPE,
        average_utilization_ratio=figures.average_utilization(None),
        flops_per_second=figures.flops(None),
        host=_host_part(snapshot.host),
        host_memory=figures.host_memory(None),
        device_memory=figures.device_memory(None),
        devices=tuple(
            _device_part(figures, index, device, verdicts.get(index))
            for index, device in snapshot.devices_by_index.items()
        ),
        host_findings=() if None not in verdicts else tuple(map(_finding_part, verdicts[None].findings)),
        neuroncores=tuple(
            copy_fields(
                TopCore,
                core,
                neuroncore=core.index,
                neuron_device=core.device_index,
                memory_used_bytes=core.memory.total_bytes,
            )
            for core in figures.cores
        ),
        processes=tuple(process_part(figure, snapshot) for figure in chosen),
        jobs=tuple(
            _job_part(job, snapshot, figures.peak_flops_per_core)
            for job in figures.jobs
            if pids is None or any(rank.process.pid in pids for rank in job.ranks)
        ),
        users=tuple(copy_fields(TopUser, total, user=total.name) for total in user_totals(figures, ())),
        ended=tuple(ended_row(ended) for ended in snapshot.ended),
        daemon_cost=TopCost(snapshot.daemon_vcpu_ratio, snapshot.daemon_resident_bytes),
    )


def _device_part(figures: Figures, index: int, device: Device | None, found: health.Verdict | None) -> TopDevice:
    verdict = found or health.Verdict(index, is_known=False)
    ecc = EccCounters() if device is None else device.ecc
    average = None if device is None or device.power is None else device.power.average_ratio
    return TopDevice(
        neuron_device=index,
        is_present=device is not None,
        utilization_ratio=figures.device_utilization[index],
        memory_used_bytes=figures.device_used_bytes[index],
        memory_total_bytes=None if device is None else device.memory_bytes,
        connected_to=() if device is None else device.connected_to,
        mem_ecc_corrected_total=ecc.mem_corrected_total,
        mem_ecc_uncorrected_total=ecc.mem_uncorrected_total,
        sram_ecc_corrected_total=ecc.sram_corrected_total,
        sram_ecc_uncorrected_total=ecc.sram_uncorrected_total,
        power_average_ratio=average,
        power_average_watts=power_watts(average, figures.snapshot.instance),
        health=verdict.severity_name,
        findings=tuple(map(_finding_part, verdict.findings)),
    )


def _finding_part(finding: Finding) -> TopFinding:
    return copy_fields(
        TopFinding,
        finding,
        kind=str(finding.kind),
        severity=finding.severity.name.lower(),
        began_at=rfc3339_text(finding.began_at_unix_seconds),
        neuroncore=finding.neuroncore_index,
        is_synthetic=finding.synthetic,
        is_injected=finding.injected,
    )


def top_json(document: TopDocument, *, indent: int | None = None) -> str:
    return json_text(asdict(document), indent=indent)


CSV_COLUMNS = ("taken_at", *(field.name for field in fields(TopProcess) if field.name not in _CSV_SKIPPED))


def top_csv(document: TopDocument | None) -> str:
    """Returns a CSV line per process of the document; the header if the document is None.

    Lists are ranges such as 0-3; unknown values are empty.
    """
    if document is None:
        return csv_line(CSV_COLUMNS)
    return "".join(
        csv_line((document.taken_at, *(_csv_cell(getattr(process, name)) for name in CSV_COLUMNS[1:])))
        for process in document.processes
    )


def _csv_cell(value: object) -> object:
    if isinstance(value, str):
        return foreign_cell(value)
    if isinstance(value, tuple):
        return ranges_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


@dataclass(frozen=True, slots=True)
class TopTraining:
    """Training counters that the runtime of a process reports. None: not reported, or no rate yet."""

    steps_total: int
    steps_per_second: float | None
    samples_total: int | None
    samples_per_second: float | None
    compilations_total: int | None
    compile_seconds_total: float | None
    collectives_total: int | None
    collective_seconds_total: float | None
    collective_ratio: float | None
    collective_bytes_total: int | None
    collective_bytes_per_second: float | None
    to_device_bytes_total: int | None
    to_device_bytes_per_second: float | None
    from_device_bytes_total: int | None
    from_device_bytes_per_second: float | None
    input_wait_seconds_total: float | None
    input_wait_ratio: float | None
    checkpoints_total: int | None
    checkpoint_seconds_total: float | None
    host_seconds_total: float | None
    host_ratio: float | None
    compile_wait_seconds_total: float | None
    compile_wait_ratio: float | None
    transfer_seconds_total: float | None
    transfer_ratio: float | None
    compute_seconds_total: float | None
    compute_ratio: float | None
    collective_wait_seconds_total: float | None
    collective_wait_ratio: float | None
    compiling_for_seconds: float | None  # time since a compilation began; None: none is running, or not reported
    since_last_step_seconds: float | None
    in_collective_for_seconds: float | None  # time since a collective began; None: none is running, or not reported
    latest_collective: str | None  # name of the running collective; if none runs, of the last one
    checkpointing_for_seconds: float | None


def _training_part(process: Process, now_seconds: float) -> TopTraining | None:
    counters = process.training
    if counters is None:
        return None
    return copy_fields(
        TopTraining,
        counters,
        process.training_rates or TrainingRates(),
        compiling_for_seconds=counters.compiling_for_seconds(now_seconds),
        since_last_step_seconds=counters.since_last_step_seconds(now_seconds),
        in_collective_for_seconds=age_seconds(counters.collective_since_seconds, now_seconds),
        checkpointing_for_seconds=age_seconds(counters.checkpointing_since_seconds, now_seconds),
    )


@dataclass(frozen=True, slots=True)
class TopJob:
    """A job: processes of this host that train together, or a single process."""

    name: str | None  # name of the job; None: a process without a known job
    run_id: str | None  # identifies the run on all its hosts; None: the launcher reports no other hosts
    pids: tuple[int, ...]  # processes of the job, sorted by rank, then PID
    ranks: tuple[int | None, ...]  # rank of each process in `pids`
    world_size: int | None  # number of ranks on all hosts
    missing_ranks: tuple[int, ...]  # ranks that the launcher started on this host, but that hold no cores
    state: str  # "training", "starting", "compiling", "waiting", "stuck", "serving" or "unknown"
    state_seconds: float | None  # time in this state; for training and waiting, time since the last step
    users: tuple[str, ...]
    script: str  # script of the first process, with its arguments
    neuroncores: tuple[int, ...]
    neuron_devices: tuple[int, ...]
    utilization_ratio: float | None
    flops_per_second: float | None
    mfu_ratio: float | None
    device_memory_bytes: int | None
    executions_per_second: float | None
    requests_per_second: float | None
    request_p99_seconds: float | None  # 99th percentile of the request latency in the last ten seconds
    steps_per_second: float | None  # step rate of the slowest rank
    step_seconds: float | None  # recent step time of the median rank
    slowest_pid: int | None  # PID of the straggler; None: no straggler, or unknown
    slowest_rank: int | None
    slowest_because: str | None  # part of a step that slows the straggler, such as "compute" or "input wait"
    since_last_execution_seconds: float | None
    since_last_step_seconds: float | None  # time since the last step of the rank that is furthest behind
    compiling_for_seconds: float | None  # age of the oldest running compilation; None: none runs, or not reported
    finding_kinds: tuple[str, ...]  # kinds of the job's findings, most severe first
    is_synthetic: bool
    power_ratio: float | None  # sums over the processes of the job on this host
    power_watts: float | None
    energy_kwh: float | None
    cost_usd: float | None


def _job_part(job: RunningJob, snapshot: Snapshot, peak_flops_per_core: float | None) -> TopJob:
    slow, activity = reported_straggler(job), job_activity(job, snapshot)
    last, steps = job.last_execution_at_unix_seconds, job.recent_steps
    processes = [rank.process for rank in job.ranks]
    return copy_fields(
        TopJob,
        consumption(processes, snapshot),
        job,
        pids=tuple(process.pid for process in processes),
        ranks=tuple(rank.number for rank in job.ranks),
        state=activity.state,
        state_seconds=activity.seconds,
        script=script_text(processes[0].command),
        neuroncores=job.neuroncore_indices,
        neuron_devices=job.device_indices,
        mfu_ratio=job.mfu_ratio(peak_flops_per_core),
        step_seconds=None if steps is None else steps.median_step_seconds,
        slowest_pid=slow.rank.process.pid if slow is not None else None,
        slowest_rank=slow.rank.number if slow is not None else None,
        slowest_because=slow.part if slow is not None else None,
        since_last_execution_seconds=None if last is None else max(0.0, snapshot.taken_at_unix_seconds - last),
        since_last_step_seconds=job.since_last_step_seconds(snapshot.taken_at_seconds),
        compiling_for_seconds=age_seconds(job.compiling_since_seconds, snapshot.taken_at_seconds),
        finding_kinds=tuple(dict.fromkeys(str(finding.kind) for finding in job.findings)),
        is_synthetic=any(process.synthetic for process in processes),
    )


@dataclass(frozen=True, slots=True)
class TopHost:
    """vCPUs, memory, network and disks of the host."""

    vcpu_count: int | None
    vcpu_user_ratio: float | None
    vcpu_system_ratio: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    network_interfaces: tuple[NetworkInterface, ...]
    disks: tuple[Disk, ...]
    rdma_ports: tuple[RdmaPort, ...]


@dataclass(frozen=True, slots=True)
class TopCost:
    """CPU and memory use of neurond, the daemon."""

    vcpu_ratio: float | None
    resident_bytes: int | None


def _host_part(host: Host) -> TopHost:
    average = host.vcpu_average
    user, system = (None, None) if average is None else user_and_system_ratios(average)
    return copy_fields(TopHost, host, vcpu_user_ratio=user, vcpu_system_ratio=system)


@dataclass(frozen=True, slots=True)
class TopUser:
    """Totals over the current processes of one user."""

    user: str | None
    process_count: int
    neuroncore_count: int
    utilization_ratio: float | None  # mean utilization of the NeuronCores that this user holds
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    vcpu_ratio: float | None
