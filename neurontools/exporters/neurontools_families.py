"""Metric families neurontools_… about cores, devices, processes, training and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter

from neurontools import catalog
from neurontools.exporters.exposition import FamilyDefinition, LabelTexts, MetricFamily, MetricKind, Sample
from neurontools.exporters.health_families import health_families
from neurontools.model import DeviceMemory, HostMemory, LogicalNeuronCore, Process, Snapshot, SourceKind, logical_cores
from neurontools.model.jobs import RunningJob, job_activity, running_jobs
from neurontools.model.process import STEP_PARTS, WAIT_PART
from neurontools.util.terminal import truncate
from neurontools.util.units import strip_durations

_CATEGORY_NAMES = tuple(field.name.removesuffix("_bytes") for field in fields(DeviceMemory))
_read_memory = attrgetter(*(field.name for field in fields(DeviceMemory)))
_HOST_CATEGORY_NAMES = tuple(field.name.removesuffix("_bytes") for field in fields(HostMemory))
_read_host_memory = attrgetter(*(field.name for field in fields(HostMemory)))
_ECC = ("mem_corrected", "mem_uncorrected", "mem_repairable_uncorrected", "sram_corrected", "sram_uncorrected")
_read_ecc = attrgetter(*(f"{event}_total" for event in _ECC))
_MOST_WARNINGS = 8
_STATISTICS = ("minimum", "average", "maximum")
_read_power = attrgetter(*(f"{statistic}_ratio" for statistic in _STATISTICS))

# Names of labels.
_DEVICE = "neuron_device_index"
_CORE_LABELS = ("neuroncore", _DEVICE)
_OWNER = ("pid", "user", "runtime_tag", "pod", "namespace", "container", "slurm_job_id")
_PROCESS = ("pid",)  # queries get further labels of a process by a join with neurontools_process on `pid`
_IDENTITY = ("uid", "command", "runtime_version", "synthetic", "container_id")
_MAX_COMMAND_CHARACTERS = 128  # of the label `command`: Prometheus keeps label texts in its index


CORE_OWNER = FamilyDefinition("neurontools_neuroncore_owner", MetricKind.INFO, "Owner of the NeuronCore")
CORE_CANDIDATE = FamilyDefinition(
    "neurontools_neuroncore_owner_candidate",
    MetricKind.INFO,
    "Process that has the device open and may hold the NeuronCore",
)
PROCESS = FamilyDefinition(
    "neurontools_process", MetricKind.INFO, "A process that holds or may hold NeuronCores, with its identity"
)
POD_ALLOCATION = FamilyDefinition(
    "neurontools_pod_allocation", MetricKind.INFO, "Resources that the kubelet allocated to a container, used or not"
)
_TRAINING_COUNTERS = (
    ("steps_total", "steps", "Calls of an optimizer's step"),
    ("samples_total", "samples", "Samples in the batches of the loader"),
    ("compilations_total", "compilations", "Graphs compiled because the cache lacked them"),
    ("compile_seconds_total", "compile_seconds", "Time of compilations"),
    ("collectives_total", "collectives", "Executed collectives"),
    ("collective_seconds_total", "collective_seconds", "Time in collectives, part of the busy time"),
    ("collective_bytes_total", "collective_bytes", "Bytes that the process put into collectives"),
    ("to_device_bytes_total", "to_device_bytes", "Bytes copied from the host to the device"),
    ("from_device_bytes_total", "from_device_bytes", "Bytes copied from the device to the host"),
    ("input_wait_seconds_total", "input_wait_seconds", "Time that steps waited for their batch"),
    ("checkpoints_total", "checkpoints", "Checkpoints written"),
    ("checkpoint_seconds_total", "checkpoint_seconds", "Time that the script spent writing checkpoints"),
)
_PROCESS_STEP_TIME = FamilyDefinition(
    "neurontools_process_step_time_seconds", MetricKind.COUNTER, "Time of the process by part; the parts add up"
)
_STEP_PARTS = tuple(part.name.replace(" ", "_") for part in STEP_PARTS)
_PROCESS_COMPILING = FamilyDefinition(
    "neurontools_process_compiling_seconds",
    MetricKind.GAUGE,
    "Time that the process has been waiting for a compilation, else 0",
)
_PROCESS_SINCE_STEP = FamilyDefinition(
    "neurontools_process_seconds_since_last_step", MetricKind.GAUGE, "Time since the process ended its latest step"
)
_TRAINING_DEFINITIONS = tuple(
    (field, FamilyDefinition(f"neurontools_process_{name}", MetricKind.COUNTER, text))
    for field, name, text in _TRAINING_COUNTERS
)
_MOST_JOBS = 32  # limit of exported jobs, largest first; a job has nine series, plus one per rank
_JOB_LABELS = ("job_name", "run_id")
JOB_COUNT = FamilyDefinition(
    "neurontools_jobs", MetricKind.GAUGE, "Jobs on this host; a process without a known job counts as one"
)


def _gauge(name: str, text: str) -> FamilyDefinition:
    return FamilyDefinition(f"neurontools_{name}", MetricKind.GAUGE, text)


def _counter(name: str, text: str) -> FamilyDefinition:
    return FamilyDefinition(f"neurontools_{name}", MetricKind.COUNTER, text)


CORE_HELD = _gauge(
    "neuroncore_held", "1 while a process holds the NeuronCore, 0 while it is free; absent while that is unknown"
)
CORE_UTILIZATION = _gauge(
    "neuroncore_utilization_ratio", "Share of the last period spent in executions, for every core"
)
CORE_FLOPS = _gauge("neuroncore_flops", "Floating point operations a second in the last period")
CORE_MFU = _gauge("neuroncore_mfu_ratio", "FLOPS relative to the catalog's peak for the dtype")
CORE_MEMORY = _gauge("neuroncore_memory_bytes", "Device memory by the driver's eleven categories")
CORE_BUSY = _counter("neuroncore_busy_seconds", "Time in executions, those still running included")
CORE_FLOP = _counter("neuroncore_flop", "Floating point operations executed")
CORE_EXECUTIONS = _counter("neuroncore_executions", "Finished executions, whatever their outcome")
CORE_SINCE = _gauge(
    "neuroncore_seconds_since_last_execution", "Time since the latest finished execution of a held core"
)
CORE_IN_FLIGHT = _gauge("neuroncore_execution_in_flight_seconds", "How long the execution in flight has been running")
DEVICE_MEMORY = _gauge("device_memory_bytes", "HBM capacity of the device")
STACK_USED = _gauge("device_hbm_used_bytes", "HBM in use, by stack")
STACK_SIZE = _gauge("device_hbm_bytes", "HBM capacity, by stack")
DEVICE_HOST_MEMORY = _gauge("device_host_memory_bytes", "Host memory that serves the device, by category")
DEVICE_ECC = _counter("device_ecc_events", "ECC events since the driver was loaded")
DEVICE_POWER = _gauge("device_power_ratio", "Power of the last full minute as a share of the device's maximum")
PROCESS_CORES = _gauge("process_neuroncores", "NeuronCores that the process holds")
PROCESS_MEMORY = _gauge("process_device_memory_bytes", "Device memory of the process, all categories")
PROCESS_HOST_MEMORY = _gauge("process_host_memory_bytes", "Host memory of the process by category")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory of the process")
PROCESS_CPU = _counter("process_cpu_seconds", "vCPU time of the process")
PROCESS_MODELS = _gauge("process_models", "Models that the process has loaded")
PROCESS_REPORTING = _gauge("process_reporting", "1 while the process reports, 0 while its numbers are stale")
DEVICES_EXPECTED = _gauge("devices_expected", "Expected devices: in a container, those assigned to it")
DEVICES_FOREIGN = _gauge("devices_foreign", "Devices of the host that are not assigned to this container")
DEVICES = _gauge("devices", "Existing devices")
WARNINGS = _gauge("warnings", "Parts of the host that can't be read")
WARNING = _gauge("warning", "1 for each unreadable part of the host, at most eight; the label describes it")
SNAPSHOT_TIME = _gauge("snapshot_timestamp_seconds", "When the numbers were taken, Unix time")


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
    owners, candidates = _owner_samples(snapshot, label)
    yield MetricFamily(CORE_OWNER, owners)
    yield MetricFamily(CORE_CANDIDATE, candidates)
    yield from _device_families(snapshot, label)
    yield from health_families(snapshot, label)
    yield from _process_families(snapshot, holders, label)
    yield from training_families(holders, snapshot.taken_at_seconds, label)
    yield from job_families(snapshot, peak_flops_per_core, label)
    yield MetricFamily(POD_ALLOCATION, list(_pod_allocation_samples(snapshot, label)))
    alone = label.named()()
    instance = snapshot.instance
    expected = len(instance.expected_device_indices) or instance.device_count
    yield MetricFamily(DEVICES_EXPECTED, [(alone, expected)])
    yield MetricFamily(DEVICES_FOREIGN, [(alone, instance.foreign_device_count)])
    yield MetricFamily(DEVICES, [(alone, len(snapshot.devices))])
    yield MetricFamily(WARNINGS, [(alone, len(snapshot.warnings))])
    of_warning = label.named("warning")
    # A changing number of seconds in a label would create a new series every second.
    warnings = dict.fromkeys(strip_durations(warning, "some seconds") for warning in snapshot.warnings[:_MOST_WARNINGS])
    yield MetricFamily(WARNING, [(of_warning(warning), 1) for warning in warnings])
    yield MetricFamily(SNAPSHOT_TIME, [(alone, snapshot.taken_at_unix_seconds)])


def _core_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[MetricFamily]:
    samples: dict[FamilyDefinition, list[Sample]] = {definition: [] for definition in _CORE_FAMILIES}
    now = snapshot.taken_at_unix_seconds
    of_core = label.named(*_CORE_LABELS)
    of_mfu = label.named(*_CORE_LABELS, "dtype")
    memory_rows = label.rows(*_CORE_LABELS, "category", last=_CATEGORY_NAMES)
    for group in logical_cores(snapshot):
        text = of_core(group.index, group.device_index)
        has_owner, is_free = bool(group.owner_pids), group.is_free
        if is_free is not None:
            samples[CORE_HELD].append((text, int(not is_free)))
        utilization, flops = group.utilization_ratio, group.flops_per_second
        if utilization is not None:
            samples[CORE_UTILIZATION].append((text, utilization))
        if flops is not None:
            samples[CORE_FLOPS].append((text, flops))
            if peak_flops_per_core:
                mfu_ratio = flops / (peak_flops_per_core * len(group.cores))
                samples[CORE_MFU].append((of_mfu(group.index, group.device_index, catalog.PEAK_DTYPE), mfu_ratio))
        _add_memory(samples[CORE_MEMORY], group, memory_rows(group.index, group.device_index))
        _add_counters(samples, group, text)
        if has_owner:
            last = [c.last_execution_at_unix_seconds for c in group.cores if c.last_execution_at_unix_seconds]
            if last:
                samples[CORE_SINCE].append((text, max(0.0, now - max(last))))
            started = [c.execution_started_at_unix_seconds for c in group.cores if c.execution_started_at_unix_seconds]
            if started:
                samples[CORE_IN_FLIGHT].append((text, max(0.0, now - min(started))))
    for definition, values in samples.items():
        yield MetricFamily(definition, values)


_CORE_FAMILIES = (
    CORE_HELD,
    CORE_UTILIZATION,
    CORE_FLOPS,
    CORE_MFU,
    CORE_MEMORY,
    CORE_BUSY,
    CORE_FLOP,
    CORE_EXECUTIONS,
    CORE_SINCE,
    CORE_IN_FLIGHT,
)


def _add_memory(samples: list[Sample], group: LogicalNeuronCore, texts: tuple[str, ...]) -> None:
    memory = group.memory if len(group.cores) > 1 else group.cores[0].memory
    for text, size_bytes in zip(texts, _read_memory(memory), strict=True):
        if size_bytes is not None:
            samples.append((text, size_bytes))


def _add_counters(samples: dict[FamilyDefinition, list[Sample]], group: LogicalNeuronCore, text: str) -> None:
    """Adds the counters of a logical core to the samples.

    Each of its physical cores counts the full busy time and all executions, but only a part of the FLOPs.
    """
    cores = group.cores
    busy = [core.busy_seconds_total for core in cores if core.busy_seconds_total is not None]
    if busy:
        samples[CORE_BUSY].append((text, sum(busy) / len(busy)))
    flop = [core.flop_total for core in cores if core.flop_total is not None]
    if flop:
        samples[CORE_FLOP].append((text, sum(flop)))
    executions = [core.executions_total for core in cores if core.executions_total is not None]
    if executions:
        samples[CORE_EXECUTIONS].append((text, max(executions)))


def _owner_samples(snapshot: Snapshot, label: LabelTexts) -> tuple[list[Sample], list[Sample]]:
    """Returns the samples of core owners (inferred owners are marked), and those of processes that may own a core."""
    by_pid = {process.pid: process for process in snapshot.processes}
    of_owner, of_inferred = label.named(*_CORE_LABELS, *_OWNER), label.named(*_CORE_LABELS, *_OWNER, "inferred")
    owners: list[Sample] = []
    candidates: list[Sample] = []
    for group in logical_cores(snapshot):
        place = group.index, group.device_index
        for pid in group.owner_pids:
            process = by_pid.get(pid)
            if process is not None:
                owner = _owner_values(process)
                text = of_inferred(*place, *owner, "true") if group.is_owner_inferred else of_owner(*place, *owner)
                owners.append((text, 1))
        for pid in group.candidate_pids:
            process = by_pid.get(pid)
            if process is not None:
                candidates.append((of_owner(*place, *_owner_values(process)), 1))
    return owners, candidates


def _owner_values(process: Process) -> tuple[str | int, ...]:
    """Returns the label values for _OWNER; a value that the process lacks is ""."""
    attribution = process.attribution
    if attribution is None:
        return (process.pid, process.user or "", process.tag, "", "", "", "")
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
    samples: dict[FamilyDefinition, list[Sample]] = {definition: [] for definition in _DEVICE_FAMILIES}
    of_device, of_stack = label.named(_DEVICE), label.named(_DEVICE, "hbm")
    host_memory_rows = label.rows(_DEVICE, "category", last=_HOST_CATEGORY_NAMES)
    ecc_rows = label.rows(_DEVICE, "event_type", last=_ECC)
    power_rows = label.rows(_DEVICE, "statistic", last=_STATISTICS)
    for device in snapshot.devices:
        samples[DEVICE_MEMORY].append((of_device(device.index), device.memory_bytes))
        for stack in device.hbm_stacks:
            text = of_stack(device.index, stack.index)
            samples[STACK_SIZE].append((text, stack.capacity_bytes))
            if stack.used_bytes is not None:
                samples[STACK_USED].append((text, stack.used_bytes))
        sizes = zip(host_memory_rows(device.index), _read_host_memory(device.host_memory), strict=True)
        # Skips sizes of 0, because all sizes are 0 on a simulated host.
        samples[DEVICE_HOST_MEMORY].extend((text, size_bytes) for text, size_bytes in sizes if size_bytes)
        counts = zip(ecc_rows(device.index), _read_ecc(device.ecc), strict=True)
        samples[DEVICE_ECC].extend((text, count) for text, count in counts if count is not None)
        if device.power is not None:
            samples[DEVICE_POWER].extend(zip(power_rows(device.index), _read_power(device.power), strict=True))
    for definition, values in samples.items():
        yield MetricFamily(definition, values)


_DEVICE_FAMILIES = (DEVICE_MEMORY, STACK_SIZE, STACK_USED, DEVICE_HOST_MEMORY, DEVICE_ECC, DEVICE_POWER)


def _process_families(snapshot: Snapshot, holders: list[Process], label: LabelTexts) -> Iterator[MetricFamily]:
    samples: dict[FamilyDefinition, list[Sample]] = {definition: [] for definition in _PROCESS_FAMILIES}
    of_process, of_identity = label.named(*_PROCESS), label.named(*_OWNER, *_IDENTITY)
    host_memory_rows = label.rows(*_PROCESS, "category", last=_HOST_CATEGORY_NAMES)
    for process in holders:
        text = of_process(process.pid)
        samples[PROCESS].append((of_identity(*_owner_values(process), *_identity_values(process)), 1))
        if process.core_indices:  # without core indices, the cores are unknown
            samples[PROCESS_CORES].append((text, len(process.neuroncore_indices)))
        used = [size for core in snapshot.cores_of(process) for size in _read_memory(core.memory) if size is not None]
        if used:
            samples[PROCESS_MEMORY].append((text, sum(used)))
        host_sizes = zip(host_memory_rows(process.pid), _read_host_memory(process.host_memory), strict=True)
        samples[PROCESS_HOST_MEMORY].extend([(row, size_bytes) for row, size_bytes in host_sizes if size_bytes])
        if process.resident_bytes is not None:
            samples[PROCESS_RESIDENT].append((text, process.resident_bytes))
        if process.cpu_user_seconds_total is not None and process.cpu_system_seconds_total is not None:
            samples[PROCESS_CPU].append((text, process.cpu_user_seconds_total + process.cpu_system_seconds_total))
        # The driver doesn't list models, so an empty list on real devices means unknown.
        if snapshot.source is SourceKind.SIMULATED or process.models:
            samples[PROCESS_MODELS].append((text, len(process.models)))
        samples[PROCESS_REPORTING].append((text, int(process.reporting)))
    for definition, values in samples.items():
        yield MetricFamily(definition, values)


_PROCESS_FAMILIES = (
    PROCESS,
    PROCESS_CORES,
    PROCESS_MEMORY,
    PROCESS_HOST_MEMORY,
    PROCESS_RESIDENT,
    PROCESS_CPU,
    PROCESS_MODELS,
    PROCESS_REPORTING,
)


def _identity_values(process: Process) -> tuple[str | int, ...]:
    attribution = process.attribution
    return (
        "" if process.uid is None else process.uid,
        truncate(process.command or "", _MAX_COMMAND_CHARACTERS),
        process.runtime_version or "",
        "true" if process.synthetic else "false",
        (attribution.container_id if attribution else None) or "",
    )


def _pod_allocation_samples(snapshot: Snapshot, label: LabelTexts) -> Iterator[Sample]:
    for name, field in ((_DEVICE, "device_indices"), ("neuroncore", "neuroncore_indices")):
        of_container = label.named("pod", "namespace", "container", name)
        for allocation in snapshot.pod_allocations:
            for index in getattr(allocation, field):
                yield of_container(allocation.pod_name, allocation.pod_namespace, allocation.container_name, index), 1


def training_families(holders: list[Process], now_seconds: float, label: LabelTexts) -> Iterator[MetricFamily]:
    """Yields the training families. A process without training counters has no samples.

    `now_seconds` is the CLOCK_MONOTONIC time of the snapshot.
    """
    of_process = label.named("pid")
    counting = [(of_process(process.pid), process.training) for process in holders if process.training is not None]
    for field, definition in _TRAINING_DEFINITIONS:
        samples: list[Sample] = [(text, getattr(counters, field)) for text, counters in counting]
        yield MetricFamily(definition, [(text, value) for text, value in samples if value is not None])
    of_parts = label.rows("pid", "part", last=_STEP_PARTS)
    parts: list[Sample] = []
    compiling: list[Sample] = []
    since_step: list[Sample] = []
    for process in holders:
        counters = process.training
        if counters is None:
            continue
        text = of_process(process.pid)
        if counters.host_seconds_total is not None:
            values = [getattr(counters, part.counter) for part in STEP_PARTS]
            parts += [pair for pair in zip(of_parts(process.pid), values, strict=True) if pair[1] is not None]
            compiling.append((text, counters.compiling_for_seconds(now_seconds) or 0.0))
        if (since := counters.since_last_step_seconds(now_seconds)) is not None:
            since_step.append((text, since))
    yield MetricFamily(_PROCESS_STEP_TIME, parts)
    yield MetricFamily(_PROCESS_COMPILING, compiling)
    yield MetricFamily(_PROCESS_SINCE_STEP, since_step)


def _job_gauge(name: str, text: str) -> FamilyDefinition:
    return FamilyDefinition(f"neurontools_job_{name}", MetricKind.GAUGE, text)


JOB_RANKS = _job_gauge("ranks", "Ranks of the job on this host")
JOB_WORLD_SIZE = _job_gauge("world_size", "Ranks of the job on all hosts")
JOB_MISSING_RANKS = _job_gauge("missing_ranks", "Ranks that the launcher started on this host and that hold no cores")
JOB_CORES = _job_gauge("neuroncores", "NeuronCores that the job holds on this host")
JOB_STATE = _job_gauge(
    "state", "1 for the current state of the job: training, starting, compiling, waiting, stuck, unknown"
)
JOB_SINCE_STEP = _job_gauge("seconds_since_last_step", "Time since all ranks on this host had ended a step")
JOB_STEPS = _job_gauge("steps_per_second", "Optimizer steps a second of the slowest rank on this host")
JOB_STEP_SECONDS = _job_gauge("step_seconds", "Duration of the latest steps of the median rank on this host")
JOB_MFU = _job_gauge("mfu_ratio", "FLOPS of the job's cores on this host relative to their bf16 peak")
JOB_RANK_WAIT = _job_gauge(
    "rank_collective_wait_seconds", "Seconds per step that the rank waited for others, in its latest steps"
)
_JOB_FAMILIES = (
    JOB_RANKS,
    JOB_WORLD_SIZE,
    JOB_MISSING_RANKS,
    JOB_CORES,
    JOB_STATE,
    JOB_SINCE_STEP,
    JOB_STEPS,
    JOB_STEP_SECONDS,
    JOB_MFU,
    JOB_RANK_WAIT,
)


def job_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[MetricFamily]:
    """Yields the number of jobs, and the families of jobs that have several ranks on this host or elsewhere."""
    samples: dict[FamilyDefinition, list[Sample]] = {definition: [] for definition in _JOB_FAMILIES}
    found = running_jobs(snapshot)
    yield MetricFamily(JOB_COUNT, [(label.named()(), len(found))])
    several = [job for job in found if job.name is not None and (job.is_several or not job.is_whole)]
    several.sort(key=lambda job: (-len(job.neuroncore_indices), job.name or ""))
    of_job, of_state = label.named(*_JOB_LABELS), label.named(*_JOB_LABELS, "state")
    of_rank = label.named(*_JOB_LABELS, "rank")
    for job in several[:_MOST_JOBS]:
        job_values = job.name or "", job.run_id or ""
        text = of_job(*job_values)
        steps = job.recent_steps
        does = job_activity(job, snapshot)
        values = (
            (JOB_RANKS, len(job.ranks)),
            (JOB_WORLD_SIZE, job.world_size),
            (JOB_MISSING_RANKS, len(job.missing_ranks)),
            (JOB_CORES, len(job.neuroncore_indices)),
            (JOB_SINCE_STEP, job.since_last_step_seconds(snapshot.taken_at_seconds)),
            (JOB_STEPS, job.steps_per_second),
            (JOB_STEP_SECONDS, None if steps is None else steps.median_step_seconds),
            (JOB_MFU, job.mfu_ratio(peak_flops_per_core)),
        )
        for definition, value in values:
            if value is not None:
                samples[definition].append((text, value))
        samples[JOB_STATE].append((of_state(*job_values, does.state), 1))
        samples[JOB_RANK_WAIT] += [(of_rank(*job_values, number), wait) for number, wait in _rank_waits(job)]
    for definition in _JOB_FAMILIES:
        yield MetricFamily(definition, samples[definition])


def _rank_waits(job: RunningJob) -> Iterator[tuple[int, float]]:
    for rank in job.ranks:
        steps = rank.process.recent_steps
        if steps is not None and rank.number is not None:
            yield rank.number, steps.part_seconds[WAIT_PART]
