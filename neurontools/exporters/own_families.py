"""Families of our own, `neurontools_…`: idle cores, owners, all memory categories, MFU, power, health."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter

from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.exporters.training_families import training_families
from neurontools.health import Severity, Verdict
from neurontools.model import DeviceMemory, HostMemory, LogicalNeuronCore, Process, Snapshot, logical_cores

MFU_DTYPE = "bf16"  # nobody reports the data type in use: the peak is that of bf16

_CATEGORIES = tuple((field.name, field.name.removesuffix("_bytes")) for field in fields(DeviceMemory))
_CATEGORY_NAMES = tuple(category for _, category in _CATEGORIES)
_read_memory = attrgetter(*(field for field, _ in _CATEGORIES))
_HOST_CATEGORIES = tuple((field.name, field.name.removesuffix("_bytes")) for field in fields(HostMemory))
_ECC = ("mem_corrected", "mem_uncorrected", "mem_repairable_uncorrected", "sram_corrected", "sram_uncorrected")


def _gauge(name: str, text: str) -> Definition:
    return Definition(f"neurontools_{name}", Kind.GAUGE, text)


def _counter(name: str, text: str) -> Definition:
    return Definition(f"neurontools_{name}", Kind.COUNTER, text)


CORE_HELD = _gauge("neuroncore_held", "1 while a process holds the NeuronCore, 0 while it is free")
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
DEVICE_MEMORY = _gauge("device_memory_bytes", "HBM capacity of the device")
STACK_USED = _gauge("device_hbm_used_bytes", "HBM in use, by stack")
STACK_SIZE = _gauge("device_hbm_bytes", "HBM capacity, by stack")
DEVICE_HOST_MEMORY = _gauge("device_host_memory_bytes", "Host memory that serves the device, by category")
DEVICE_ECC = _counter("device_ecc_events", "ECC events since the driver was loaded")
DEVICE_POWER = _gauge("device_power_ratio", "Power of the last full minute as a share of the device's maximum")
DEVICE_HEALTH = _gauge("device_health", "Gravest finding: 0 none, 1 notice, 2 warning, 3 critical")
DEVICE_FINDINGS = _gauge("device_findings", "Findings on the device by kind and severity")
PROCESS = Definition("neurontools_process", Kind.INFO, "A process that holds NeuronCores")
PROCESS_CORES = _gauge("process_neuroncores", "NeuronCores that the process holds")
PROCESS_MEMORY = _gauge("process_device_memory_bytes", "Device memory of the process, all categories")
PROCESS_HOST_MEMORY = _gauge("process_host_memory_bytes", "Host memory of the process by category")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory of the process")
PROCESS_CPU = _counter("process_cpu_seconds", "vCPU time of the process")
PROCESS_MODELS = _gauge("process_models", "Models that the process has loaded")
PROCESS_REPORTING = _gauge("process_reporting", "1 while reports of the process arrive, 0 while its numbers are old")
DEVICES_EXPECTED = _gauge("devices_expected", "Devices that the instance type has")
DEVICES = _gauge("devices", "Devices that are there")
WARNINGS = _gauge("warnings", "Parts of the host that can't be read")
SNAPSHOT_TIME = _gauge("snapshot_timestamp_seconds", "When the numbers were taken, Unix time")
POD_ALLOCATION = Definition(
    "neurontools_pod_allocation", Kind.INFO, "What the kubelet has given to a container, used or not"
)


def own_families(
    snapshot: Snapshot,
    holders: list[Process],
    verdicts: Iterable[Verdict],
    peak_flops_per_core: float | None,
    label: LabelTexts,
) -> Iterator[Family]:
    """The families of a snapshot; `holders` are its processes that hold cores. Cores are logical, by the host's LNC."""
    yield from _core_families(snapshot, peak_flops_per_core, label)
    yield Family(CORE_OWNER, list(_owners(snapshot, holders, label)))
    yield from _device_families(snapshot, label)
    yield from _health_families(verdicts, label)
    yield from _process_families(snapshot, holders, label)
    yield from training_families(holders, label)
    yield Family(POD_ALLOCATION, list(_allocations(snapshot, label)))
    yield Family(DEVICES_EXPECTED, [(label(), snapshot.instance.device_count)])
    yield Family(DEVICES, [(label(), len(snapshot.devices))])
    yield Family(WARNINGS, [(label(), len(snapshot.warnings))])
    yield Family(SNAPSHOT_TIME, [(label(), snapshot.taken_at_unix_seconds)])


def _core_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _CORE_FAMILIES}
    now = snapshot.taken_at_unix_seconds
    mfu_dtype = ("dtype", MFU_DTYPE)
    for group in logical_cores(snapshot):
        place = ("neuroncore", str(group.index)), ("neuron_device_index", str(group.device_index))
        text = label(*place)
        held = bool(group.owner_pids)
        samples[CORE_HELD].append((text, int(held)))
        utilization, flops = group.utilization_ratio, group.flops_per_second
        if utilization is not None:
            samples[CORE_UTILIZATION].append((text, utilization))
        if flops is not None:
            samples[CORE_FLOPS].append((text, flops))
            if peak_flops_per_core:
                samples[CORE_MFU].append((label(*place, mfu_dtype), flops / (peak_flops_per_core * len(group.cores))))
        _add_memory(samples[CORE_MEMORY], group, place, label)
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


def _add_memory(
    samples: list[Sample], group: LogicalNeuronCore, place: tuple[tuple[str, str], ...], label: LabelTexts
) -> None:
    memory = group.memory if len(group.cores) > 1 else group.cores[0].memory
    texts = label.each("category", _CATEGORY_NAMES, *place)
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


def _owners(snapshot: Snapshot, holders: list[Process], label: LabelTexts) -> Iterator[Sample]:
    by_pid = {process.pid: process for process in holders}
    for group in logical_cores(snapshot):
        for pid in group.owner_pids:
            process = by_pid.get(pid)
            if process is not None:
                place = ("neuroncore", str(group.index)), ("neuron_device_index", str(group.device_index))
                yield label(*place, *owner_labels(process)), 1


def owner_labels(process: Process) -> tuple[tuple[str, str], ...]:
    """Who a process is: PID, user, tag, and the pod, container and job it runs in; "" where there is none."""
    of = process.attribution
    return (
        ("pid", str(process.pid)),
        ("user", process.user or ""),
        ("runtime_tag", process.tag),
        ("pod", (of.pod_name if of else None) or ""),
        ("namespace", (of.pod_namespace if of else None) or ""),
        ("container", ((of.container_name or (of.container_id or "")[:12]) if of else None) or ""),
        ("slurm_job_id", (of.slurm_job_id if of else None) or ""),
    )


def _device_families(snapshot: Snapshot, label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _DEVICE_FAMILIES}
    for device in snapshot.devices:
        place = ("neuron_device_index", str(device.index))
        samples[DEVICE_MEMORY].append((label(place), device.memory_bytes))
        for stack in device.hbm_stacks:
            text = label(place, ("hbm", str(stack.index)))
            samples[STACK_SIZE].append((text, stack.capacity_bytes))
            if stack.used_bytes is not None:
                samples[STACK_USED].append((text, stack.used_bytes))
        for field, category in _HOST_CATEGORIES:
            size_bytes = getattr(device.host_memory, field)
            if size_bytes:  # on a simulated host they are all 0
                samples[DEVICE_HOST_MEMORY].append((label(place, ("category", category)), size_bytes))
        for event in _ECC:
            count = getattr(device.ecc, event + "_total")
            if count is not None:
                samples[DEVICE_ECC].append((label(place, ("event_type", event)), count))
        if device.power is not None:
            for statistic in ("minimum", "average", "maximum"):
                ratio = getattr(device.power, statistic + "_ratio")
                samples[DEVICE_POWER].append((label(place, ("statistic", statistic)), ratio))
    for definition, values in samples.items():
        yield Family(definition, values)


_DEVICE_FAMILIES = (DEVICE_MEMORY, STACK_SIZE, STACK_USED, DEVICE_HOST_MEMORY, DEVICE_ECC, DEVICE_POWER)


def _health_families(verdicts: Iterable[Verdict], label: LabelTexts) -> Iterator[Family]:
    health: list[Sample] = []
    counts: dict[str, int] = {}
    for verdict in verdicts:
        place = ("neuron_device_index", str(verdict.device_index))
        health.append((label(place), int(verdict.severity)))
        for finding in verdict.findings:
            severity = Severity(finding.severity).name.lower()
            text = label(place, ("kind", finding.kind.value), ("severity", severity))
            counts[text] = counts.get(text, 0) + 1
    yield Family(DEVICE_HEALTH, health)
    yield Family(DEVICE_FINDINGS, list(counts.items()))


def _process_families(snapshot: Snapshot, holders: list[Process], label: LabelTexts) -> Iterator[Family]:
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _PROCESS_FAMILIES}
    for process in holders:
        which = ("pid", str(process.pid)), ("runtime_tag", process.tag)
        text = label(*which)
        samples[PROCESS].append((label(*owner_labels(process), *_identity(process)), 1))
        samples[PROCESS_CORES].append((text, len(process.neuroncore_indices)))
        memory = sum(snapshot.cores[index].memory.total_bytes or 0 for index in process.core_indices)
        samples[PROCESS_MEMORY].append((text, memory))
        for field, category in _HOST_CATEGORIES:
            size_bytes = getattr(process.host_memory, field)
            if size_bytes:
                samples[PROCESS_HOST_MEMORY].append((label(*which, ("category", category)), size_bytes))
        if process.resident_bytes is not None:
            samples[PROCESS_RESIDENT].append((text, process.resident_bytes))
        if process.cpu_user_seconds_total is not None and process.cpu_system_seconds_total is not None:
            samples[PROCESS_CPU].append((text, process.cpu_user_seconds_total + process.cpu_system_seconds_total))
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


def _identity(process: Process) -> tuple[tuple[str, str], ...]:
    of = process.attribution
    return (
        ("uid", "" if process.uid is None else str(process.uid)),
        ("runtime_version", process.runtime_version or ""),
        ("synthetic", "true" if process.synthetic else "false"),
        ("container_id", (of.container_id if of else None) or ""),
    )


def _allocations(snapshot: Snapshot, label: LabelTexts) -> Iterator[Sample]:
    for allocation in snapshot.pod_allocations:
        who = (
            ("pod", allocation.pod_name),
            ("namespace", allocation.pod_namespace),
            ("container", allocation.container_name),
        )
        for name, indices in (
            ("neuron_device_index", allocation.device_indices),
            ("neuroncore", allocation.neuroncore_indices),
        ):
            for index in indices:
                yield label(*who, (name, str(index))), 1
