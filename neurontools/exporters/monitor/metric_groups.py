"""Builds the metric groups of a record: for processes, for the host, and neuron_k8s_info.

An unknown number is 0 where the format has an integer, because AWS's exporter fails on null and other readers sum the
numbers. If a whole group is unknown, its `error` says so, and readers skip the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

from neurontools.exporters.monitor.period import RecordPeriod
from neurontools.exporters.monitor.record_types import (
    EXECUTION_STATS,
    HW_COUNTERS,
    MEMORY_INFO,
    MEMORY_USED,
    NEURONCORE_COUNTERS,
    RUNTIME_VCPU_USAGE,
    VCPU_USAGE,
    CoreBreakdown,
    CoreCounters,
    CpuShares,
    DeviceEcc,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HostBreakdown,
    HwCounters,
    InstanceInfo,
    K8sUser,
    LoadedModelEntry,
    MemoryInfo,
    MemoryUsed,
    NeuronCoreCounters,
    NeuronHardwareInfo,
    NeuronK8sInfo,
    Percentiles,
    RuntimeReport,
    RuntimeVcpuUsage,
    SubgraphDeviceBreakdown,
    SubgraphEntry,
    SystemData,
    VcpuUsageGroup,
)
from neurontools.model import (
    Device,
    DeviceMemory,
    ErrorCounters,
    ExecutionCounters,
    HostMemory,
    Instance,
    LatencyPercentiles,
    LoadedModel,
    NeuronCore,
    Process,
    Snapshot,
    SourceKind,
    Subgraph,
    VcpuUsage,
    sum_device_memory,
)

_HOST_CATEGORIES = ("application_memory", "constants", "dma_buffers", "tensors")
_CORE_CATEGORIES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
_SUBGRAPH_CATEGORIES = ("constants", "model_code", "runtime_memory", "tensors")
_NO_ERRORS = {name.removesuffix("_total"): 0 for name in ErrorCounters.__slots__}
_NO_EXECUTIONS = {name.removesuffix("_total"): 0 for name in ExecutionCounters.__slots__}
# The percentiles, ECC counters and CPU shares have the order of AWS's records.
_PERCENTILES = ("p0", "p1", "p100", "p25", "p50", "p75", "p99")
_ECC_COUNTERS = ("mem_corrected", "mem_uncorrected", "sram_uncorrected", "sram_corrected")
_CPU_SHARES = ("user", "nice", "system", "idle", "io_wait", "irq", "soft_irq")
_NO_VCPU_USAGE = VcpuUsage(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def runtime_report(
    process: Process, periods: dict[str, RecordPeriod], *, lists_held_cores_only: bool = False
) -> RuntimeReport:
    """Returns the metric groups of a process, each over its own period, sorted by name as in AWS's records.

    Lists all NeuronCores of the process's devices, as AWS's neuron-monitor does. With `lists_held_cores_only`, lists
    only the NeuronCores that the process holds, as AWS's guide says.
    """
    writers = _RUNTIME_WRITERS | {
        NEURONCORE_COUNTERS: partial(_neuroncore_counters, lists_held_cores_only=lists_held_cores_only),
        MEMORY_USED: partial(_memory_used, lists_held_cores_only=lists_held_cores_only),
    }
    return cast(RuntimeReport, {name: writers[name](process, periods[name]) for name in sorted(periods)})


def _neuroncore_counters(process: Process, period: RecordPeriod, *, lists_held_cores_only: bool) -> NeuronCoreCounters:
    error = _missing_report_error(process, period.now)
    cores = {} if error else dict(_held_cores(process, period))
    if not cores and not error:
        is_known = bool(process.core_indices)
        error = _unknown_utilization_error(process, period) if is_known else _unknown_cores_error(process)
    if cores and not lists_held_cores_only:
        cores |= _other_cores(process, period.now)
    return {
        "period": _measured_seconds(process, period),
        "neuroncores_in_use": dict(sorted(cores.items())),
        "error": error,
    }


def _held_cores(process: Process, period: RecordPeriod) -> Iterable[tuple[str, CoreCounters]]:
    snapshot = period.now
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        physical = _physical_cores(process, position, snapshot)
        work = period.work_rates(process, position)
        if work is None:
            rates = [period.core_rates(core, process) for core in physical]
        else:  # each physical core is as busy as the logical core, and has an equal part of its FLOPs
            rates = [(work[0], work[1] / len(physical)) for _ in physical]
        ratios = [busy for busy, _ in rates if busy is not None]
        if not ratios and snapshot.source == SourceKind.SYSFS:
            continue  # omits the core: unknown utilization is not 0
        utilization = 100.0 * sum(ratios) / len(ratios) if ratios else 0.0
        by_physical = {core.index: 100.0 * (busy or 0.0) for core, (busy, _) in zip(physical, rates, strict=True)}
        yield (
            str(neuroncore_index),
            _core_counters(process, snapshot, utilization, by_physical, sum(f or 0.0 for _, f in rates)),
        )


def _other_core_indices(process: Process, snapshot: Snapshot) -> Iterable[int]:
    """Returns the NeuronCores that the process does not hold, on the devices that it uses.

    Readers look cores up by index, so no index may be absent.
    """
    per_device, process_cores = _cores_per_device(process, snapshot), set(process.neuroncore_indices)
    for device in process.device_indices:
        yield from (i for i in range(device * per_device, (device + 1) * per_device) if i not in process_cores)


def _other_cores(process: Process, snapshot: Snapshot) -> dict[str, CoreCounters]:
    """Returns entries with utilization 0 for the NeuronCores that the process does not hold."""
    lnc = process.logical_neuroncore_config
    return {
        str(index): _core_counters(
            process, snapshot, 0.0, dict.fromkeys(range(index * lnc, index * lnc + lnc), 0.0), 0.0
        )
        for index in _other_core_indices(process, snapshot)
    }


def _core_counters(
    process: Process, snapshot: Snapshot, utilization: float, by_physical: Mapping[int, float], flops: float
) -> CoreCounters:
    """Returns the entry of a logical core: its utilization and FLOPS, and the utilization of its physical cores."""
    whole = round(flops)
    entry: CoreCounters = {"neuroncore_utilization": utilization, "flops": whole, "effective_flops": whole}
    base = (snapshot.instance.neuroncore_version or "").removesuffix("d")
    if process.logical_neuroncore_config > 1 and base:
        entry[f"{base}d"] = {
            f"nc_{base}.{index}": {"neuroncore_utilization": percent} for index, percent in by_physical.items()
        }
    return entry


def _execution_stats(process: Process, period: RecordPeriod) -> ExecutionStats:
    return {
        "period": _measured_seconds(process, period),
        "error_summary": cast(ErrorSummary, period.counts("errors", process) or _NO_ERRORS),
        "execution_summary": cast(ExecutionSummary, period.counts("executions", process) or _NO_EXECUTIONS),
        "latency_stats": {
            "total_latency": _percentiles(period.latency("total_latency", process)),
            "device_latency": _percentiles(period.latency("device_latency", process)),
        },
        "error": (
            _missing_report_error(process, period.now)
            or (_unknown_executions_error(process) if process.executions is None else "")
            or ("" if period.has_report(process) else _late_report_error(process, period.now))
        ),
    }


def _memory_used(process: Process, period: RecordPeriod, *, lists_held_cores_only: bool) -> MemoryUsed:
    host = _host_breakdown(process.host_memory)
    cores = dict(_core_memory(process, period.now))
    if cores and not lists_held_cores_only:
        none = cast(CoreBreakdown, dict.fromkeys(_CORE_CATEGORIES, 0))
        cores |= {str(index): none for index in _other_core_indices(process, period.now)}
    cores_per_device = _cores_per_device(process, period.now)
    return {
        "period": period.seconds,
        "neuron_runtime_used_bytes": {
            "host": _sum_breakdown(host),
            "neuron_device": sum(map(_sum_breakdown, cores.values())),
            "usage_breakdown": {"host": host, "neuroncore_memory_usage": dict(sorted(cores.items()))},
        },
        "loaded_models": [_model_entry(model, cores_per_device) for model in process.models],
        "error": "" if cores or process.core_indices else _unknown_cores_error(process),
    }


def _core_memory(process: Process, snapshot: Snapshot) -> Iterable[tuple[str, CoreBreakdown]]:
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        physical = _physical_cores(process, position, snapshot)
        if not physical:
            continue
        memory = sum_device_memory(core.memory for core in physical)
        usage = {name: getattr(memory, f"{name}_bytes") or 0 for name in _CORE_CATEGORIES}
        yield str(neuroncore_index), cast(CoreBreakdown, usage)


def _physical_cores(process: Process, position: int, snapshot: Snapshot) -> list[NeuronCore]:
    """Returns the existing physical cores of the logical core at this position in the process's list."""
    lnc = process.logical_neuroncore_config
    indices = process.core_indices[position * lnc : (position + 1) * lnc]
    return [core for index in indices if (core := snapshot.core(index)) is not None]


def _cores_per_device(process: Process, snapshot: Snapshot) -> int:
    return max(1, snapshot.instance.physical_cores_per_device // process.logical_neuroncore_config)


def _model_entry(model: LoadedModel, cores_per_device: int) -> LoadedModelEntry:
    return {
        "name": model.name,
        "uuid": model.uuid,
        "model_id": model.model_id,
        "is_running": model.running,
        "subgraphs": {
            f"sg_{subgraph.index:02d}": _subgraph_entry(subgraph, cores_per_device) for subgraph in model.subgraphs
        },
    }


def _subgraph_entry(subgraph: Subgraph, cores_per_device: int) -> SubgraphEntry:
    """Returns the entry of a subgraph. Its core index is relative to the device, as in AWS's guide."""
    host, device = _host_breakdown(subgraph.host_memory), _subgraph_device_breakdown(subgraph.device_memory)
    return {
        "memory_used_bytes": {
            "host": _sum_breakdown(host),
            "neuron_device": _sum_breakdown(device),
            "usage_breakdown": {"host": host, "neuron_device": device},
        },
        "neuroncore_index": subgraph.neuroncore_index % cores_per_device,
        "neuron_device_index": subgraph.device_index,
    }


def _runtime_vcpu_usage(process: Process, period: RecordPeriod) -> RuntimeVcpuUsage:
    # Synthetic processes use no vCPU time, so theirs counts as 0.
    user, system = (0.0, 0.0) if process.synthetic else period.vcpu_ratios(process)
    vcpu_count = period.now.host.vcpu_count
    if user is None or system is None or not vcpu_count:
        error = f"the vCPU times of PID {process.pid} can't be read" if period.seconds else ""
        return {"period": period.seconds, "vcpu_usage": {"user": 0.0, "system": 0.0}, "error": error}
    usage = {"user": round(100.0 * user / vcpu_count, 2), "system": round(100.0 * system / vcpu_count, 2)}
    return cast(RuntimeVcpuUsage, {"period": period.seconds, "vcpu_usage": usage, "error": ""})


_RUNTIME_WRITERS: dict[str, Callable[[Process, RecordPeriod], object]] = {
    EXECUTION_STATS: _execution_stats,
    RUNTIME_VCPU_USAGE: _runtime_vcpu_usage,
}


def _measured_seconds(process: Process, period: RecordPeriod) -> float:
    """Returns the seconds that the reports of a process cover; the whole period if its report is missing."""
    return period.seconds if _missing_report_error(process, period.now) else period.seconds_of(process)


def _missing_report_error(process: Process, snapshot: Snapshot) -> str:
    """Returns the reason why the current state of a process is unknown; "" if it is known."""
    if process.reporting or snapshot.source == SourceKind.SYSFS:
        return ""
    if process.measured_at_seconds is None:
        return f"PID {process.pid} has not reported yet"
    silent_seconds = snapshot.taken_at_seconds - process.measured_at_seconds
    return f"PID {process.pid} last reported {silent_seconds:.0f} s ago"


def _late_report_error(process: Process, snapshot: Snapshot) -> str:
    """Returns the error text for a late report, whose numbers will be in a later record."""
    if snapshot.source == SourceKind.SYSFS:
        return ""
    return f"PID {process.pid} has not reported since the previous record; a later one has its executions"


def _unknown_cores_error(process: Process) -> str:
    devices = ", ".join(map(str, process.device_indices)) or "none"
    return (
        f"the NeuronCores of PID {process.pid} are unknown: it has device {devices} open, and so have other processes; "
        "set NEURON_RT_VISIBLE_CORES"
    )


def _unknown_utilization_error(process: Process, period: RecordPeriod) -> str:
    version = period.now.instance.driver_version or "of an unknown version"
    return (
        f"the utilization of the NeuronCores of PID {process.pid} is unknown: it takes two readings, and driver "
        f"{version} may count only when a process ends (before 2.30)"
    )


def _unknown_executions_error(process: Process) -> str:
    if not process.core_indices:
        return _unknown_cores_error(process)
    return f"the executions of PID {process.pid} are unknown while it runs: driver before 2.30"


def _percentiles(latency: LatencyPercentiles | None) -> Percentiles | None:
    return None if latency is None else {name: getattr(latency, f"{name}_seconds") for name in _PERCENTILES}


def _host_breakdown(memory: HostMemory) -> HostBreakdown:
    return cast(HostBreakdown, {name: getattr(memory, f"{name}_bytes") or 0 for name in _HOST_CATEGORIES})


def _subgraph_device_breakdown(memory: DeviceMemory) -> SubgraphDeviceBreakdown:
    return cast(SubgraphDeviceBreakdown, {name: getattr(memory, f"{name}_bytes") or 0 for name in _SUBGRAPH_CATEGORIES})


def _sum_breakdown(breakdown: HostBreakdown | CoreBreakdown | SubgraphDeviceBreakdown) -> int:
    return sum(cast(dict[str, int], breakdown).values())


def system_data(periods: dict[str, RecordPeriod]) -> SystemData:
    """Returns the metric groups of the host, each over its own period, sorted by name as in AWS's records."""
    return cast(SystemData, {name: _SYSTEM_WRITERS[name](periods[name]) for name in sorted(periods)})


def _host_memory_info(period: RecordPeriod) -> MemoryInfo:
    host = period.now.host
    total, used = host.memory_total_bytes, host.memory_used_bytes
    return {
        "period": period.seconds,
        "memory_total_bytes": total or 0,
        "memory_used_bytes": used or 0,
        "swap_total_bytes": host.swap_total_bytes or 0,
        "swap_used_bytes": host.swap_used_bytes or 0,
        "error": "the host's memory can't be read" if total is None or used is None else "",
    }


def _vcpu_usage(period: RecordPeriod) -> VcpuUsageGroup:
    now, before = period.now.host, period.before.host if period.before else None
    switches = None
    if before is not None and now.context_switches_total is not None and before.context_switches_total is not None:
        switches = now.context_switches_total - before.context_switches_total
    average, vcpus, seconds = period.vcpu_usage()
    return {
        "period": seconds,
        "average_usage": _cpu_shares(average or _NO_VCPU_USAGE),
        "usage_data": dict(sorted((str(index), _cpu_shares(usage)) for index, usage in enumerate(vcpus))),
        "context_switch_count": max(0, switches or 0),
        "error": "" if average is not None or not period.seconds else "the host's vCPU times can't be read",
    }


def _hw_counters(period: RecordPeriod) -> HwCounters:
    before = {device.index: device for device in period.before.devices} if period.before else {}
    unknown = {} if period.now.health is None else period.now.health.unknown_devices
    # Without a baseline, the counts begin when the driver was loaded, at most the uptime of the host ago.
    return {
        "period": period.seconds if period.before or not period.now.devices else period.now.taken_at_seconds,
        "neuron_devices": [_device_ecc(device, before.get(device.index)) for device in period.now.devices],
        "error": next((f"device {index}: {reason}" for index, reason in unknown.items()), ""),
    }


def _device_ecc(device: Device, before: Device | None) -> DeviceEcc:
    counts = {"neuron_device_index": device.index}
    for name in _ECC_COUNTERS:
        kind, _, outcome = name.partition("_")
        now = getattr(device.ecc, f"{name}_total")
        earlier = getattr(before.ecc, f"{name}_total") if before else 0
        # The format requires integers, so unknown events are 0. If a counter is smaller than before, the driver was
        # reloaded and counts from 0 again.
        is_known = now is not None and earlier is not None
        counts[f"{kind}_ecc_{outcome}"] = 0 if not is_known else now - earlier if now >= earlier else now
    return cast(DeviceEcc, counts)


def _cpu_shares(usage: VcpuUsage) -> CpuShares:
    return cast(CpuShares, {name: round(100.0 * getattr(usage, f"{name}_ratio"), 2) for name in _CPU_SHARES})


_SYSTEM_WRITERS: dict[str, Callable[[RecordPeriod], object]] = {
    MEMORY_INFO: _host_memory_info,
    HW_COUNTERS: _hw_counters,
    VCPU_USAGE: _vcpu_usage,
}


def instance_info(instance: Instance) -> InstanceInfo:
    """Returns the instance_info of a record; unknown values are ""."""
    info: InstanceInfo = {
        "instance_name": instance.instance_name or "",
        "instance_id": instance.instance_id or "",
        "instance_type": instance.instance_type,
        "instance_availability_zone": instance.availability_zone or "",
        "instance_availability_zone_id": instance.availability_zone_id or "",
        "instance_region": instance.region or "",
        "ami_id": instance.ami_id or "",
        "subnet_id": instance.subnet_id or "",
        "error": "",
    }
    if instance.ultraserver_id:
        info["ultraserver_id"] = instance.ultraserver_id
    return info


def neuron_hardware_info(instance: Instance) -> NeuronHardwareInfo:
    """Returns the neuron_hardware_info of a record; cores are logical, at the LNC of the host."""
    lnc = instance.logical_neuroncore_config
    return {
        "neuron_device_type": instance.device_type or "",
        "neuron_device_version": instance.device_version or "",
        "neuroncore_version": instance.neuroncore_version or "",
        "neuron_device_count": instance.device_count,
        "neuron_device_memory_size": instance.device_memory_bytes,
        "neuroncore_per_device_count": instance.physical_cores_per_device // lnc,
        "logical_neuroncore_config": lnc,
        "error": "",
    }


def neuron_k8s_info(period: RecordPeriod) -> NeuronK8sInfo:
    """Returns the pod of each core and device: the pod to which the kubelet allocated it, else its process's pod."""
    cores: dict[int, K8sUser] = {}
    devices: dict[int, K8sUser] = {}
    snapshot = period.now
    per_device = snapshot.instance.physical_cores_per_device // snapshot.instance.logical_neuroncore_config
    for allocation in snapshot.pod_allocations:
        pod = allocation.pod_name, allocation.pod_namespace, allocation.container_name
        given = {*allocation.neuroncore_indices}
        for device in allocation.device_indices:
            _add_user(devices, device, *pod)
            given |= set(range(device * per_device, (device + 1) * per_device))
        for core in given:
            _add_user(cores, core, *pod)
    _add_processes(snapshot, cores, devices)
    return {
        "period": period.seconds,
        "neuroncores_k8s_info": _sort_by_index(cores),
        "neurondevices_k8s_info": _sort_by_index(devices),
        "error": "",
    }


def _add_processes(snapshot: Snapshot, cores: dict[int, K8sUser], devices: dict[int, K8sUser]) -> None:
    lnc = snapshot.instance.logical_neuroncore_config
    for process in snapshot.processes:
        attribution = process.attribution
        if attribution is None or attribution.pod_name is None or not process.core_indices:
            continue
        pod = attribution.pod_name, attribution.pod_namespace or "", attribution.container_name or ""
        for core in sorted({index // lnc for index in process.core_indices}):
            _add_user(cores, core, *pod)
        for device in process.device_indices:
            _add_user(devices, device, *pod)


def _add_user(users: dict[int, K8sUser], index: int, pod_name: str, namespace: str, container_name: str) -> None:
    """Assigns a core or device to the first pod that has it; adds further containers of that pod."""
    user = users.setdefault(index, {"pod_name": pod_name, "namespace": namespace, "container_name": []})
    is_same = user["pod_name"] == pod_name and user["namespace"] == namespace
    if is_same and container_name and container_name not in user["container_name"]:
        user["container_name"].append(container_name)


def _sort_by_index(users: dict[int, K8sUser]) -> dict[str, K8sUser]:
    return dict(sorted((str(index), user) for index, user in users.items()))
