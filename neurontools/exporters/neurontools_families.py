"""Metric families neurontools_… of a snapshot: cores, devices, health, processes, training and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

from neurontools import catalog
from neurontools.exporters.exposition import (
    LabelTexts,
    MetricFamily,
    MetricKind,
    SamplesByName,
    define_families,
    families_of,
)
from neurontools.exporters.host_families import HOST_FAMILIES, MODEL_FAMILIES, host_families
from neurontools.model import (
    Attribution,
    DeviceMemory,
    HostMemory,
    LogicalNeuronCore,
    Process,
    ServedModelRates,
    Severity,
    Snapshot,
    SourceKind,
    logical_cores,
)
from neurontools.model.health import age_seconds, verdicts
from neurontools.model.jobs import RunningJob, job_activity, largest_first, running_jobs
from neurontools.model.process import STEP_PARTS, WAIT_PART
from neurontools.model.process import age_seconds as seconds_since
from neurontools.model.serving import requests_total
from neurontools.util.terminal import truncate
from neurontools.util.units import ranges_text

_CATEGORY_NAMES = tuple(field.name.removesuffix("_bytes") for field in fields(DeviceMemory))
_read_memory = attrgetter(*(field.name for field in fields(DeviceMemory)))
_HOST_CATEGORY_NAMES = tuple(field.name.removesuffix("_bytes") for field in fields(HostMemory))
_read_host_memory = attrgetter(*(field.name for field in fields(HostMemory)))
_ECC = ("mem_corrected", "mem_uncorrected", "mem_repairable_uncorrected", "sram_corrected", "sram_uncorrected")
_read_ecc = attrgetter(*(f"{event}_total" for event in _ECC))
_STATISTICS = ("minimum", "average", "maximum")
_read_power = attrgetter(*(f"{statistic}_ratio" for statistic in _STATISTICS))
_ERRORS = (
    "hw_error",
    "hw_collectives_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "hw_repairable_hbm_ue_error",
)
_read_errors = attrgetter(*(f"{error}_total" for error in _ERRORS))
_STEP_PARTS = tuple(part.name.replace(" ", "_") for part in STEP_PARTS)
_NO_ATTRIBUTION = Attribution()
_MOST_JOBS = 32  # limit of exported jobs, largest first; a job has nine series, plus one per rank
_MAX_COMMAND_CHARACTERS = 128  # limit of the label `command`, because Prometheus keeps label texts in its index

# Names of labels.
_DEVICE = "neuron_device_index"
_CORE_LABELS = ("neuroncore", _DEVICE)
_OWNER = ("pid", "user", "runtime_tag", "pod", "namespace", "container", "slurm_job_id")
_IDENTITY = ("uid", "command", "runtime_version", "synthetic", "container_id")
_JOB_LABELS = ("job_name", "run_id")
_FINDING = (
    *("finding", "severity", "neuron_devices", "part", "job_name"),
    *("pid", "synthetic", "injected", "reason", "action"),
)

_CORES = define_families(
    "neuroncore_",
    (
        "held",
        MetricKind.GAUGE,
        "1 while a process holds the NeuronCore, 0 while it is free; absent while that is unknown",
    ),
    ("utilization_ratio", MetricKind.GAUGE, "Share of the last period spent in executions, for every core"),
    ("flops", MetricKind.GAUGE, "Floating point operations a second in the last period"),
    ("mfu_ratio", MetricKind.GAUGE, "FLOPS relative to the catalog's peak for the dtype"),
    ("memory_bytes", MetricKind.GAUGE, "Device memory by the driver's eleven categories"),
    ("busy_seconds", MetricKind.COUNTER, "Time in executions, those still running included"),
    ("flop", MetricKind.COUNTER, "Floating point operations executed"),
    ("executions", MetricKind.COUNTER, "Finished executions, whatever their outcome"),
    ("seconds_since_last_execution", MetricKind.GAUGE, "Time since the latest finished execution of a held core"),
    ("execution_in_flight_seconds", MetricKind.GAUGE, "How long the execution in flight has been running"),
    ("owner", MetricKind.INFO, "Owner of the NeuronCore"),
    ("owner_candidate", MetricKind.INFO, "Process that has the device open and may hold the NeuronCore"),
)
_DEVICES = define_families(
    "device_",
    ("memory_bytes", MetricKind.GAUGE, "HBM capacity of the device"),
    ("hbm_bytes", MetricKind.GAUGE, "HBM capacity, by stack"),
    ("hbm_used_bytes", MetricKind.GAUGE, "HBM in use, by stack"),
    ("host_memory_bytes", MetricKind.GAUGE, "Host memory that serves the device, by category"),
    ("ecc_events", MetricKind.COUNTER, "ECC events since the driver was loaded"),
    ("power_ratio", MetricKind.GAUGE, "Power of the last full minute as a share of the device's maximum"),
)
_SEVERITIES = "0 none, 1 notice, 2 warning, 3 critical; absent: unknown"
_HEALTH = define_families(
    "",
    ("device_health", MetricKind.GAUGE, f"Highest severity of a finding: {_SEVERITIES}"),
    ("device_findings", MetricKind.GAUGE, "Findings on the device by kind and severity"),
    ("health", MetricKind.GAUGE, f"Highest severity of a finding of the host, which the label names: {_SEVERITIES}"),
    ("finding_seconds", MetricKind.GAUGE, "Age of a finding; the labels have its kind, reason and action"),
    ("device_unhealthy_component", MetricKind.GAUGE, "1 for each part that the driver reports as unhealthy"),
    (
        "neuroncore_hardware_errors",
        MetricKind.COUNTER,
        "Hardware errors that the driver counts for the NeuronCore, by the driver's names",
    ),
    ("device_resets", MetricKind.COUNTER, "Resets since the driver was loaded, requested and failed"),
    ("injected_fault", MetricKind.GAUGE, "1 for each injected fault of simulated devices that is not healed"),
)
_PROCESSES = define_families(
    "process",
    ("", MetricKind.INFO, "A process that holds or may hold NeuronCores, with its identity"),
    ("_neuroncores", MetricKind.GAUGE, "NeuronCores that the process holds"),
    ("_device_memory_bytes", MetricKind.GAUGE, "Device memory of the process, all categories"),
    ("_host_memory_bytes", MetricKind.GAUGE, "Host memory of the process by category"),
    ("_resident_memory_bytes", MetricKind.GAUGE, "Resident memory of the process"),
    ("_cpu_seconds", MetricKind.COUNTER, "vCPU time of the process"),
    ("_models", MetricKind.GAUGE, "Models that the process has loaded"),
    ("_reporting", MetricKind.GAUGE, "1 while the process reports, 0 while its numbers are stale"),
)
_TRAINING_COUNTERS = define_families(
    "process_",
    ("steps", MetricKind.COUNTER, "Calls of an optimizer's step"),
    ("samples", MetricKind.COUNTER, "Samples in the batches of the loader"),
    ("compilations", MetricKind.COUNTER, "Graphs compiled because the cache lacked them"),
    ("compile_seconds", MetricKind.COUNTER, "Time of compilations"),
    ("collectives", MetricKind.COUNTER, "Executed collectives"),
    ("collective_seconds", MetricKind.COUNTER, "Time in collectives, part of the busy time"),
    ("collective_bytes", MetricKind.COUNTER, "Bytes that the process put into collectives"),
    ("to_device_bytes", MetricKind.COUNTER, "Bytes copied from the host to the device"),
    ("from_device_bytes", MetricKind.COUNTER, "Bytes copied from the device to the host"),
    ("input_wait_seconds", MetricKind.COUNTER, "Time that steps waited for their batch"),
    ("checkpoints", MetricKind.COUNTER, "Checkpoints written"),
    ("checkpoint_seconds", MetricKind.COUNTER, "Time that the script spent writing checkpoints"),
)
_TRAINING = define_families(
    "process_",
    ("step_time_seconds", MetricKind.COUNTER, "Time of the process by part; the parts add up"),
    ("compiling_seconds", MetricKind.GAUGE, "Time that the process has been waiting for a compilation, else 0"),
    ("seconds_since_last_step", MetricKind.GAUGE, "Time since the process ended its latest step"),
)
_SERVING = define_families(
    "process_",
    ("requests", MetricKind.COUNTER, "Requests for inference that ended, without the calls inside the application's"),
)
_SERVED_COUNTERS = define_families(
    "served_model_",
    ("requests", MetricKind.COUNTER, "Requests for the model that ended, including failed ones"),
    ("failed_requests", MetricKind.COUNTER, "Requests for the model that failed"),
    ("calls", MetricKind.COUNTER, "Executions of the model"),
    ("samples", MetricKind.COUNTER, "Sum of the batch sizes of all executions of the model"),
    ("queue_wait_seconds", MetricKind.COUNTER, "Sum of the waits of all requests before their execution"),
    ("tokens", MetricKind.COUNTER, "Tokens that the model generated"),
)
_SERVED = define_families(
    "served_model_",
    ("queue_depth", MetricKind.GAUGE, "Requests that wait for the model"),
    ("seconds_since_last_request", MetricKind.GAUGE, "Time since the end of the latest request"),
    ("load_seconds", MetricKind.GAUGE, "Longest duration of loading the model on a core"),
    ("memory_bytes", MetricKind.GAUGE, "Device memory of the model on all its cores"),
    ("latency_seconds", MetricKind.GAUGE, "Latency of requests in the last ten seconds, by percentile"),
    ("device_latency_seconds", MetricKind.GAUGE, "Time of executions on the core in the last ten seconds"),
    ("first_token_seconds", MetricKind.GAUGE, "Time to the first token in the last ten seconds, by percentile"),
    ("output_token_seconds", MetricKind.GAUGE, "Time per later token in the last ten seconds, by percentile"),
)
_SERVED_PERCENTILES = ("p50", "p90", "p99", "p100")
_JOBS = define_families(
    "job",
    ("s", MetricKind.GAUGE, "Jobs on this host; a process without a known job counts as one"),
    ("_ranks", MetricKind.GAUGE, "Ranks of the job on this host"),
    ("_world_size", MetricKind.GAUGE, "Ranks of the job on all hosts"),
    ("_missing_ranks", MetricKind.GAUGE, "Ranks that the launcher started on this host and that hold no cores"),
    ("_neuroncores", MetricKind.GAUGE, "NeuronCores that the job holds on this host"),
    (
        "_state",
        MetricKind.GAUGE,
        "1 for the current state of the job: training, starting, compiling, waiting, stuck, unknown, serving",
    ),
    ("_seconds_since_last_step", MetricKind.GAUGE, "Time since all ranks on this host had ended a step"),
    ("_steps_per_second", MetricKind.GAUGE, "Training steps a second of the slowest rank on this host"),
    ("_requests_per_second", MetricKind.GAUGE, "Requests a second of the job's processes on this host"),
    ("_request_p99_seconds", MetricKind.GAUGE, "99th percentile of the latest request latency, of the slowest process"),
    ("_step_seconds", MetricKind.GAUGE, "Duration of the latest steps of the median rank on this host"),
    ("_mfu_ratio", MetricKind.GAUGE, "FLOPS of the job's cores on this host relative to their bf16 peak"),
    (
        "_rank_collective_wait_seconds",
        MetricKind.GAUGE,
        "Seconds per step that the rank waited for others, in its latest steps",
    ),
)


HOST_VIEW_FAMILIES = frozenset(
    (
        *HOST_FAMILIES.values(),
        *MODEL_FAMILIES.values(),
        *_JOBS.values(),
        *(_HEALTH[name] for name in ("health", "finding_seconds")),
    )
)
"""The families that neuron-top --prometheus and the alert rules read, besides those of `snapshot_metrics`."""


def neurontools_families(
    snapshot: Snapshot,
    holders: list[Process],
    peak_flops_per_core: float | None,
    label: LabelTexts,
) -> Iterator[MetricFamily]:
    """Yields all families neurontools_… of a snapshot.

    `holders` are the processes that use the runtime. Cores are logical.
    """
    yield from _core_families(snapshot, peak_flops_per_core, label)
    yield from _device_families(snapshot, label)
    yield from _health_families(snapshot, label)
    yield from _process_families(snapshot, holders, label)
    yield from _training_families(holders, snapshot.taken_at_seconds, label)
    yield from _serving_families(holders, snapshot.taken_at_seconds, label)
    jobs = largest_first(running_jobs(snapshot))
    yield from job_families(jobs, snapshot, peak_flops_per_core, label)
    yield from host_families(jobs, snapshot, peak_flops_per_core, label)


def _core_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[MetricFamily]:
    samples: SamplesByName = {name: [] for name in _CORES}
    now = snapshot.taken_at_unix_seconds
    by_pid = {process.pid: process for process in snapshot.processes}
    of_core, of_mfu = label.named(*_CORE_LABELS), label.named(*_CORE_LABELS, "dtype")
    of_owner, of_inferred = label.named(*_CORE_LABELS, *_OWNER), label.named(*_CORE_LABELS, *_OWNER, "inferred")
    memory_rows = label.rows(*_CORE_LABELS, "category", last=_CATEGORY_NAMES)
    for group in logical_cores(snapshot):
        core = group.index, group.device_index
        text = of_core(*core)
        if group.is_free is not None:
            samples["held"].append((text, int(not group.is_free)))
        utilization, flops = group.utilization_ratio, group.flops_per_second
        if utilization is not None:
            samples["utilization_ratio"].append((text, utilization))
        if flops is not None:
            samples["flops"].append((text, flops))
            if peak_flops_per_core:
                mfu_ratio = flops / (peak_flops_per_core * len(group.cores))
                samples["mfu_ratio"].append((of_mfu(*core, catalog.PEAK_DTYPE), mfu_ratio))
        memory = group.memory if len(group.cores) > 1 else group.cores[0].memory
        sizes = zip(memory_rows(*core), _read_memory(memory), strict=True)
        samples["memory_bytes"] += [(row, size_bytes) for row, size_bytes in sizes if size_bytes is not None]
        _add_counters(samples, group, text)
        owners = [by_pid[pid] for pid in group.owner_pids if pid in by_pid]
        for owner in owners:
            values = (*core, *_owner_values(owner))
            samples["owner"].append((of_inferred(*values, "true") if group.is_owner_inferred else of_owner(*values), 1))
        candidates = [by_pid[pid] for pid in group.candidate_pids if pid in by_pid]
        samples["owner_candidate"] += [(of_owner(*core, *_owner_values(process)), 1) for process in candidates]
        if group.owner_pids:
            last = [c.last_execution_at_unix_seconds for c in group.cores if c.last_execution_at_unix_seconds]
            if last:
                samples["seconds_since_last_execution"].append((text, max(0.0, now - max(last))))
            started = [c.execution_started_at_unix_seconds for c in group.cores if c.execution_started_at_unix_seconds]
            if started:
                samples["execution_in_flight_seconds"].append((text, max(0.0, now - min(started))))
    return families_of(_CORES, samples)


def _add_counters(samples: SamplesByName, group: LogicalNeuronCore, text: str) -> None:
    """Adds the counters of a logical core to the samples.

    Each of its physical cores counts the full busy time and all executions, but only a part of the FLOPs.
    """
    cores = group.cores
    busy = [core.busy_seconds_total for core in cores if core.busy_seconds_total is not None]
    if busy:
        samples["busy_seconds"].append((text, sum(busy) / len(busy)))
    flop = [core.flop_total for core in cores if core.flop_total is not None]
    if flop:
        samples["flop"].append((text, sum(flop)))
    executions = [core.executions_total for core in cores if core.executions_total is not None]
    if executions:
        samples["executions"].append((text, max(executions)))


def _owner_values(process: Process) -> tuple[str | int, ...]:
    """Returns a process's values for the labels in _OWNER; a value that the process lacks is ""."""
    attribution = process.attribution or _NO_ATTRIBUTION
    return (
        process.pid,
        process.user or "",
        process.tag,
        attribution.pod_name or "",
        attribution.pod_namespace or "",
        attribution.container_name or (attribution.container_id or "")[:12],
        attribution.slurm_job_id or "",
    )


def _device_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[MetricFamily]:
    samples: SamplesByName = {name: [] for name in _DEVICES}
    of_device, of_stack = label.named(_DEVICE), label.named(_DEVICE, "hbm")
    host_memory_rows = label.rows(_DEVICE, "category", last=_HOST_CATEGORY_NAMES)
    ecc_rows = label.rows(_DEVICE, "event_type", last=_ECC)
    power_rows = label.rows(_DEVICE, "statistic", last=_STATISTICS)
    for device in snapshot.devices:
        samples["memory_bytes"].append((of_device(device.index), device.memory_bytes))
        for stack in device.hbm_stacks:
            text = of_stack(device.index, stack.index)
            samples["hbm_bytes"].append((text, stack.capacity_bytes))
            if stack.used_bytes is not None:
                samples["hbm_used_bytes"].append((text, stack.used_bytes))
        sizes = zip(host_memory_rows(device.index), _read_host_memory(device.host_memory), strict=True)
        # Skips sizes of 0, because all sizes are 0 on a simulated host.
        samples["host_memory_bytes"] += [(row, size_bytes) for row, size_bytes in sizes if size_bytes]
        counts = zip(ecc_rows(device.index), _read_ecc(device.ecc), strict=True)
        samples["ecc_events"] += [(row, count) for row, count in counts if count is not None]
        if device.power is not None:
            samples["power_ratio"] += zip(power_rows(device.index), _read_power(device.power), strict=True)
    return families_of(_DEVICES, samples)


def _health_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[MetricFamily]:
    """Returns the families of health. On simulated hosts, the families of the driver's counters have no samples."""
    samples: SamplesByName = {name: [] for name in _HEALTH}
    counts: dict[str, int] = {}
    of_device, of_kind = label.named(_DEVICE), label.named(_DEVICE, "kind", "severity")
    for verdict in verdicts(snapshot):
        if verdict.device_index is None:  # `health` and `finding_seconds` show the findings that concern no device
            continue
        if verdict.severity is not None:
            samples["device_health"].append((of_device(verdict.device_index), int(verdict.severity)))
        for finding in verdict.findings:
            text = of_kind(verdict.device_index, finding.kind, finding.severity.name.lower())
            counts[text] = counts.get(text, 0) + 1
    samples["device_findings"] = list(counts.items())
    if snapshot.health is not None:
        gravest = next(iter(snapshot.health.findings), None)
        severity = gravest.severity if gravest is not None else Severity.OK
        if severity > Severity.NOTICE or not snapshot.health.unknown_device_indices:
            kind = gravest.kind if gravest is not None else ""
            samples["health"] = [(label.named("finding")(kind), int(severity))]
        of_finding = label.named(*_FINDING)
        for finding in snapshot.health.findings:
            text = of_finding(
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
            )
            samples["finding_seconds"].append((text, age_seconds(finding, snapshot)))
    _add_driver_counters(samples, snapshot, label)
    of_fault = label.named("fault", "kind", "state", "neuron_devices")
    for fault in snapshot.injected_faults:
        text = of_fault(fault.number, fault.kind, fault.state.name.lower(), ranges_text(fault.device_indices))
        samples["injected_fault"].append((text, 1))
    return families_of(_HEALTH, samples)


def _add_driver_counters(samples: SamplesByName, snapshot: Snapshot, label: LabelTexts) -> None:
    of_component = label.named(_DEVICE, "component")
    for device in snapshot.devices:
        unhealthy = device.reported_health.unhealthy_components if device.reported_health is not None else ()
        samples["device_unhealthy_component"] += [(of_component(device.index, part), 1) for part in unhealthy]
    resets: dict[int, tuple[int, int]] = {}
    rows = label.rows("neuroncore", _DEVICE, "error", last=_ERRORS)
    for group in logical_cores(snapshot):
        readings = [_read_errors(core.status) for core in group.cores if core.status is not None]
        if readings:
            for text, each in zip(rows(group.index, group.device_index), zip(*readings, strict=True), strict=True):
                counts = [count for count in each if count is not None]
                samples["neuroncore_hardware_errors"] += [(text, sum(counts))] if counts else []
        for core in group.cores:
            if core.reset_requests_total is not None and core.reset_failures_total is not None:
                requested, failed = resets.get(core.device_index, (0, 0))
                # The driver counts a reset of a device on each of its cores, so the highest count is the device's.
                resets[core.device_index] = (
                    max(requested, core.reset_requests_total),
                    max(failed, core.reset_failures_total),
                )
    reset_rows = label.rows(_DEVICE, "outcome", last=("requested", "failed"))
    for index, both in resets.items():
        samples["device_resets"] += zip(reset_rows(index), both, strict=True)


def _process_families(snapshot: Snapshot, holders: list[Process], label: LabelTexts) -> Iterator[MetricFamily]:
    samples: SamplesByName = {name: [] for name in _PROCESSES}
    # Queries get other labels of a process by a join with neurontools_process on `pid`.
    of_process, of_identity = label.named("pid"), label.named(*_OWNER, *_IDENTITY)
    host_memory_rows = label.rows("pid", "category", last=_HOST_CATEGORY_NAMES)
    for process in holders:
        text = of_process(process.pid)
        samples[""].append((of_identity(*_owner_values(process), *_identity_values(process)), 1))
        if process.core_indices:  # without core indices, the cores are unknown
            samples["_neuroncores"].append((text, len(process.neuroncore_indices)))
        used = [size for core in snapshot.cores_of(process) for size in _read_memory(core.memory) if size is not None]
        if used:
            samples["_device_memory_bytes"].append((text, sum(used)))
        host_sizes = zip(host_memory_rows(process.pid), _read_host_memory(process.host_memory), strict=True)
        samples["_host_memory_bytes"] += [(row, size_bytes) for row, size_bytes in host_sizes if size_bytes]
        if process.resident_bytes is not None:
            samples["_resident_memory_bytes"].append((text, process.resident_bytes))
        if process.cpu_user_seconds_total is not None and process.cpu_system_seconds_total is not None:
            samples["_cpu_seconds"].append((text, process.cpu_user_seconds_total + process.cpu_system_seconds_total))
        # The driver doesn't list models, so an empty list on real devices means unknown.
        if snapshot.source is SourceKind.SIMULATED or process.models:
            samples["_models"].append((text, len(process.models)))
        samples["_reporting"].append((text, int(process.reporting)))
    return families_of(_PROCESSES, samples)


def _identity_values(process: Process) -> tuple[str | int, ...]:
    return (
        "" if process.uid is None else process.uid,
        truncate(process.command or "", _MAX_COMMAND_CHARACTERS),
        process.runtime_version or "",
        "true" if process.synthetic else "false",
        (process.attribution or _NO_ATTRIBUTION).container_id or "",
    )


def _training_families(holders: list[Process], now_seconds: float, label: LabelTexts) -> Iterator[MetricFamily]:
    """Yields the training families. A process without training counters has no samples.

    `now_seconds` is the CLOCK_MONOTONIC time of the snapshot.
    """
    of_process = label.named("pid")
    counting = [(process.pid, process.training) for process in holders if process.training is not None]
    for name, definition in _TRAINING_COUNTERS.items():
        values = [(of_process(pid), getattr(counters, f"{name}_total")) for pid, counters in counting]
        yield MetricFamily(definition, [(text, value) for text, value in values if value is not None])
    samples: SamplesByName = {name: [] for name in _TRAINING}
    of_parts = label.rows("pid", "part", last=_STEP_PARTS)
    for pid, counters in counting:
        if counters.host_seconds_total is not None:
            parts = zip(of_parts(pid), [getattr(counters, part.counter) for part in STEP_PARTS], strict=True)
            samples["step_time_seconds"] += [(text, value) for text, value in parts if value is not None]
            samples["compiling_seconds"].append((of_process(pid), counters.compiling_for_seconds(now_seconds) or 0.0))
        if (since := counters.since_last_step_seconds(now_seconds)) is not None:
            samples["seconds_since_last_step"].append((of_process(pid), since))
    yield from families_of(_TRAINING, samples)


def _serving_families(holders: list[Process], now_seconds: float, label: LabelTexts) -> Iterator[MetricFamily]:
    """Yields the families of served models. `now_seconds` is the CLOCK_MONOTONIC time of the snapshot."""
    of_process, of_model = label.named("pid"), label.named("pid", "model")
    totals = [(process.pid, requests_total(process.served_models)) for process in holders]
    requests: SamplesByName = {"requests": [(of_process(pid), total) for pid, total in totals if total is not None]}
    yield from families_of(_SERVING, requests)
    served_models = [(process.pid, served) for process in holders for served in process.served_models]
    for name, definition in _SERVED_COUNTERS.items():
        values = [(of_model(pid, served.name), getattr(served, f"{name}_total")) for pid, served in served_models]
        yield MetricFamily(definition, [(text, value) for text, value in values if value is not None])
    samples: SamplesByName = {name: [] for name in _SERVED}
    of_percentile = label.named("pid", "model", "percentile")
    for pid, served in served_models:
        rates = served.rates or ServedModelRates()
        for name, value in (
            ("queue_depth", served.queue_depth),
            ("seconds_since_last_request", seconds_since(served.last_request_at_seconds, now_seconds)),
            ("load_seconds", served.load_seconds),
            ("memory_bytes", served.device_memory_bytes),
        ):
            if value is not None:
                samples[name].append((of_model(pid, served.name), value))
        for name, latency in (
            ("latency_seconds", rates.total_latency),
            ("device_latency_seconds", rates.device_latency),
            ("first_token_seconds", rates.time_to_first_token),
            ("output_token_seconds", rates.time_per_output_token),
        ):
            found = [(each, getattr(latency, f"{each}_seconds", None)) for each in _SERVED_PERCENTILES]
            samples[name] += [(of_percentile(pid, served.name, p), value) for p, value in found if value is not None]
    yield from families_of(_SERVED, samples)


def job_families(
    jobs: Sequence[RunningJob], snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts
) -> Iterator[MetricFamily]:
    """Returns the number of jobs, and the families of jobs that have several ranks on this host or elsewhere.

    `jobs` are the jobs of the snapshot, largest first.
    """
    samples: SamplesByName = {name: [] for name in _JOBS}
    samples["s"].append((label.named()(), len(jobs)))
    several = [job for job in jobs if job.name is not None and (job.is_several or not job.is_whole)]
    of_job, of_state = label.named(*_JOB_LABELS), label.named(*_JOB_LABELS, "state")
    of_rank = label.named(*_JOB_LABELS, "rank")
    for job in several[:_MOST_JOBS]:
        identity = job.name or "", job.run_id or ""
        steps = job.recent_steps
        values = {
            "_ranks": len(job.ranks),
            "_world_size": job.world_size,
            "_missing_ranks": len(job.missing_ranks),
            "_neuroncores": len(job.neuroncore_indices),
            "_seconds_since_last_step": job.since_last_step_seconds(snapshot.taken_at_seconds),
            "_steps_per_second": job.steps_per_second,
            "_requests_per_second": job.requests_per_second,
            "_request_p99_seconds": job.request_p99_seconds,
            "_step_seconds": None if steps is None else steps.median_step_seconds,
            "_mfu_ratio": job.mfu_ratio(peak_flops_per_core),
        }
        for name, value in values.items():
            if value is not None:
                samples[name].append((of_job(*identity), value))
        samples["_state"].append((of_state(*identity, job_activity(job, snapshot).state), 1))
        for rank in job.ranks:
            recent = rank.process.recent_steps
            if recent is not None and rank.number is not None:
                wait_seconds = recent.part_seconds[WAIT_PART]
                samples["_rank_collective_wait_seconds"].append((of_rank(*identity, rank.number), wait_seconds))
    return families_of(_JOBS, samples)
