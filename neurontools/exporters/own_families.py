"""Families of our own, `neurontools_…`: idle cores, owners, all memory categories, MFU, power, health."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter

from neurontools import catalog
from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.health_families import health_families
from neurontools.exporters.job_families import job_families
from neurontools.exporters.labels import LabelTexts
from neurontools.exporters.training_families import training_families
from neurontools.model import (
    DeviceMemory,
    HostMemory,
    LogicalNeuronCore,
    Process,
    Snapshot,
    SourceKind,
    logical_cores,
)
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
_PLACE = ("neuroncore", _DEVICE)
_OWNER = ("pid", "user", "runtime_tag", "pod", "namespace", "container", "slurm_job_id")
_PROCESS = ("pid",)  # all else that tells a process is in the info, which is joined by it
_IDENTITY = ("uid", "command", "runtime_version", "synthetic", "container_id")
_MAX_COMMAND_CHARACTERS = 128  # a label stays in the index of Prometheus for as long as the process has series there


def _gauge(name: str, text: str) -> Definition:
    return Definition(f"neurontools_{name}", Kind.GAUGE, text)


def _counter(name: str, text: str) -> Definition:
    return Definition(f"neurontools_{name}", Kind.COUNTER, text)


CORE_HELD = _gauge(
    "neuroncore_held", "1 while a process holds the NeuronCore, 0 while it is free; absent while that is unknown"
)
CORE_UTILIZATION = _gauge("neuroncore_utilization_ratio", "Share of the last period spent in executions; every core")
CORE_FLOPS = _gauge("neuroncore_flops", "Floating point operations a second in the last period")
CORE_MFU = _gauge("neuroncore_mfu_ratio", "FLOPS against the peak for the dtype that the catalog has")
CORE_MEMORY = _gauge("neuroncore_memory_bytes", "Device memory by the driver's eleven categories")
CORE_BUSY = _counter("neuroncore_busy_seconds", "Time in executions, those still running included")
CORE_FLOP = _counter("neuroncore_flop", "Floating point operations executed")
CORE_EXECUTIONS = _counter("neuroncore_executions", "Finished executions, whatever their outcome")
CORE_SINCE = _gauge(
    "neuroncore_seconds_since_last_execution", "Time since the latest finished execution of a held core"
)
CORE_IN_FLIGHT = _gauge("neuroncore_execution_in_flight_seconds", "How long the execution in flight has been running")
CORE_OWNER = Definition("neurontools_neuroncore_owner", Kind.INFO, "Who holds the NeuronCore")
CORE_CANDIDATE = Definition(
    "neurontools_neuroncore_owner_candidate", Kind.INFO, "Who has the device open and may hold the NeuronCore"
)
DEVICE_MEMORY = _gauge("device_memory_bytes", "HBM capacity of the device")
STACK_USED = _gauge("device_hbm_used_bytes", "HBM in use, by stack")
STACK_SIZE = _gauge("device_hbm_bytes", "HBM capacity, by stack")
DEVICE_HOST_MEMORY = _gauge("device_host_memory_bytes", "Host memory that serves the device, by category")
DEVICE_ECC = _counter("device_ecc_events", "ECC events since the driver was loaded")
DEVICE_POWER = _gauge("device_power_ratio", "Power of the last full minute as a share of the device's maximum")
PROCESS = Definition("neurontools_process", Kind.INFO, "A process that holds NeuronCores or may: who, what and whose")
PROCESS_CORES = _gauge("process_neuroncores", "NeuronCores that the process holds")
PROCESS_MEMORY = _gauge("process_device_memory_bytes", "Device memory of the process, all categories")
PROCESS_HOST_MEMORY = _gauge("process_host_memory_bytes", "Host memory of the process by category")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory of the process")
PROCESS_CPU = _counter("process_cpu_seconds", "vCPU time of the process")
PROCESS_MODELS = _gauge("process_models", "Models that the process has loaded")
PROCESS_REPORTING = _gauge("process_reporting", "1 while reports of the process arrive, 0 while its numbers are old")
DEVICES_EXPECTED = _gauge("devices_expected", "Devices that should be there: in a container, those it was given")
DEVICES_FOREIGN = _gauge("devices_foreign", "Devices of the host that were not given to this container")
DEVICES = _gauge("devices", "Devices that are there")
WARNINGS = _gauge("warnings", "Parts of the host that can't be read")
WARNING = _gauge("warning", "1 for each part of the host that can't be read, up to eight of them, in words")
SNAPSHOT_TIME = _gauge("snapshot_timestamp_seconds", "When the numbers were taken, Unix time")
POD_ALLOCATION = Definition(
    "neurontools_pod_allocation", Kind.INFO, "What the kubelet has given to a container, used or not"
)


def own_families(
    snapshot: Snapshot,
    holders: list[Process],
    peak_flops_per_core: float | None,
    label: LabelTexts,
) -> Iterator[Family]:
    """The families of a snapshot; `holders` use the runtime; cores are logical, by the LNC of the host."""
    yield from _core_families(snapshot, peak_flops_per_core, label)
    owners, candidates = _owners(snapshot, label)
    yield Family(CORE_OWNER, owners)
    yield Family(CORE_CANDIDATE, candidates)
    yield from _device_families(snapshot, label)
    yield from health_families(snapshot, label)
    yield from _process_families(snapshot, holders, label)
    yield from training_families(holders, snapshot.taken_at_seconds, label)
    yield from job_families(snapshot, peak_flops_per_core, label)
    yield Family(POD_ALLOCATION, list(_allocations(snapshot, label)))
    alone = label.named()()
    instance = snapshot.instance
    expected = len(instance.expected_device_indices) or instance.device_count
    yield Family(DEVICES_EXPECTED, [(alone, expected)])
    yield Family(DEVICES_FOREIGN, [(alone, instance.foreign_device_count)])
    yield Family(DEVICES, [(alone, len(snapshot.devices))])
    yield Family(WARNINGS, [(alone, len(snapshot.warnings))])
    of_warning = label.named("warning")
    # A number of seconds would make a series of its own every second.
    told = dict.fromkeys(strip_durations(warning, "some seconds") for warning in snapshot.warnings[:_MOST_WARNINGS])
    yield Family(WARNING, [(of_warning(warning), 1) for warning in told])
    yield Family(SNAPSHOT_TIME, [(alone, snapshot.taken_at_unix_seconds)])


def _core_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _CORE_FAMILIES}
    now = snapshot.taken_at_unix_seconds
    of_core = label.named(*_PLACE)
    of_mfu = label.named(*_PLACE, "dtype")
    memory_rows = label.rows(*_PLACE, "category", last=_CATEGORY_NAMES)
    for group in logical_cores(snapshot):
        text = of_core(group.index, group.device_index)
        held, is_free = bool(group.owner_pids), group.is_free
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
        if held:
            last = [c.last_execution_at_unix_seconds for c in group.cores if c.last_execution_at_unix_seconds]
            if last:
                samples[CORE_SINCE].append((text, max(0.0, now - max(last))))
            started = [c.execution_started_at_unix_seconds for c in group.cores if c.execution_started_at_unix_seconds]
            if started:
                samples[CORE_IN_FLIGHT].append((text, max(0.0, now - min(started))))
    for definition, values in samples.items():
        yield Family(definition, values)


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


def _add_counters(samples: dict[Definition, list[Sample]], group: LogicalNeuronCore, text: str) -> None:
    """Busy time and executions of a logical core are those of each of its physical cores; FLOPs are shared out."""
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


def _owners(snapshot: Snapshot, label: LabelTexts) -> tuple[list[Sample], list[Sample]]:
    """Owners of cores, those that were concluded marked so, and candidates."""
    by_pid = {process.pid: process for process in snapshot.processes}
    of_owner, of_inferred = label.named(*_PLACE, *_OWNER), label.named(*_PLACE, *_OWNER, "inferred")
    owners: list[Sample] = []
    candidates: list[Sample] = []
    for group in logical_cores(snapshot):
        place = group.index, group.device_index
        for pid in group.owner_pids:
            process = by_pid.get(pid)
            if process is not None:
                who = _owner(process)
                text = of_inferred(*place, *who, "true") if group.is_owner_inferred else of_owner(*place, *who)
                owners.append((text, 1))
        for pid in group.candidate_pids:
            process = by_pid.get(pid)
            if process is not None:
                candidates.append((of_owner(*place, *_owner(process)), 1))
    return owners, candidates


def _owner(process: Process) -> tuple[str | int, ...]:
    """The values of _OWNER: who a process is; "" where there is no such thing."""
    of = process.attribution
    if of is None:
        return (process.pid, process.user or "", process.tag, "", "", "", "")
    return (
        process.pid,
        process.user or "",
        process.tag,
        of.pod_name or "",
        of.pod_namespace or "",
        of.container_name or (of.container_id or "")[:12],
        of.slurm_job_id or "",
    )


def _device_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _DEVICE_FAMILIES}
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
        # On a simulated host they are all 0.
        samples[DEVICE_HOST_MEMORY].extend((text, size_bytes) for text, size_bytes in sizes if size_bytes)
        counts = zip(ecc_rows(device.index), _read_ecc(device.ecc), strict=True)
        samples[DEVICE_ECC].extend((text, count) for text, count in counts if count is not None)
        if device.power is not None:
            samples[DEVICE_POWER].extend(zip(power_rows(device.index), _read_power(device.power), strict=True))
    for definition, values in samples.items():
        yield Family(definition, values)


_DEVICE_FAMILIES = (DEVICE_MEMORY, STACK_SIZE, STACK_USED, DEVICE_HOST_MEMORY, DEVICE_ECC, DEVICE_POWER)


def _process_families(snapshot: Snapshot, holders: list[Process], label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _PROCESS_FAMILIES}
    of_process, of_identity = label.named(*_PROCESS), label.named(*_OWNER, *_IDENTITY)
    host_memory_rows = label.rows(*_PROCESS, "category", last=_HOST_CATEGORY_NAMES)
    for process in holders:
        text = of_process(process.pid)
        samples[PROCESS].append((of_identity(*_owner(process), *_identity(process)), 1))
        if process.core_indices:  # else which are its own is unknown
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
        if snapshot.source is SourceKind.SIMULATED or process.models:  # a driver doesn't tell of models
            samples[PROCESS_MODELS].append((text, len(process.models)))
        samples[PROCESS_REPORTING].append((text, int(process.reporting)))
    for definition, values in samples.items():
        yield Family(definition, values)


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


def _identity(process: Process) -> tuple[str | int, ...]:
    """The values of _IDENTITY."""
    of = process.attribution
    return (
        "" if process.uid is None else process.uid,
        truncate(process.command or "", _MAX_COMMAND_CHARACTERS),
        process.runtime_version or "",
        "true" if process.synthetic else "false",
        (of.container_id if of else None) or "",
    )


def _allocations(snapshot: Snapshot, label: LabelTexts) -> Iterator[Sample]:
    for name, field in ((_DEVICE, "device_indices"), ("neuroncore", "neuroncore_indices")):
        of_container = label.named("pod", "namespace", "container", name)
        for allocation in snapshot.pod_allocations:
            for index in getattr(allocation, field):
                yield of_container(allocation.pod_name, allocation.pod_namespace, allocation.container_name, index), 1
