"""The metric groups of one process.

What is unknown is 0 where the format has a whole number: AWS's own exporter ends at null, and others sum what is there.
Where nothing of a group is known its `error` says so, which makes them skip the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

from neurontools.exporters.monitor import groups
from neurontools.exporters.monitor.period import Period
from neurontools.exporters.monitor.record_types import (
    CoreBreakdown,
    CoreCounters,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HostBreakdown,
    LoadedModelEntry,
    MemoryUsed,
    NeuronCoreCounters,
    Percentiles,
    Report,
    RuntimeVcpuUsage,
    SubgraphDeviceBreakdown,
    SubgraphEntry,
)
from neurontools.model import (
    DeviceMemory,
    ErrorCounters,
    ExecutionCounters,
    HostMemory,
    LatencyPercentiles,
    LoadedModel,
    NeuronCore,
    Process,
    Snapshot,
    SourceKind,
    Subgraph,
    sum_device_memory,
)

_HOST_CATEGORIES = ("application_memory", "constants", "dma_buffers", "tensors")
_CORE_CATEGORIES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
_SUBGRAPH_CATEGORIES = ("constants", "model_code", "runtime_memory", "tensors")
_NO_ERRORS = {name.removesuffix("_total"): 0 for name in ErrorCounters.__slots__}
_NO_EXECUTIONS = {name.removesuffix("_total"): 0 for name in ExecutionCounters.__slots__}
_PERCENTILES = ("p0", "p1", "p100", "p25", "p50", "p75", "p99")  # in the order of the original


def runtime_report(process: Process, periods: dict[str, Period], *, lists_held_cores_only: bool = False) -> Report:
    """The metric groups of a process, each over its own period, sorted by name as the original has them.

    It lists all NeuronCores of its devices, as the original was seen to, or those it holds, as its guide says.
    """
    writers = _WRITERS | {
        groups.NEURONCORE_COUNTERS: partial(_neuroncore_counters, lists_held_cores_only=lists_held_cores_only)
    }
    return cast(Report, {name: writers[name](process, periods[name]) for name in sorted(periods)})


def _neuroncore_counters(process: Process, period: Period, *, lists_held_cores_only: bool) -> NeuronCoreCounters:
    silence = _silence(process, period.now)
    cores = {} if silence else dict(_held_cores(process, period))
    if not cores and not silence:
        silence = _unknown_cores(process) if not process.core_indices else _unknown_utilization(process, period)
    if cores and not lists_held_cores_only:
        cores |= _other_cores(process, period.now)
    return {"period": _seconds(process, period), "neuroncores_in_use": dict(sorted(cores.items())), "error": silence}


def _held_cores(process: Process, period: Period) -> Iterable[tuple[str, CoreCounters]]:
    snapshot = period.now
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        physical = _physical(process, position, snapshot)
        work = period.work_rates(process, position)
        if work is None:
            rates = [period.core_rates(core, process) for core in physical]
        else:  # each physical core of a logical one is as busy as that, and has a share of its FLOPs
            rates = [(work[0], work[1] / len(physical)) for _ in physical]
        known = [busy for busy, _ in rates if busy is not None]
        if not known and snapshot.source == SourceKind.SYSFS:
            continue  # not in use, as far as can be told, is not idle
        utilization = 100.0 * sum(known) / len(known) if known else 0.0
        by_physical = {core.index: 100.0 * (busy or 0.0) for core, (busy, _) in zip(physical, rates, strict=True)}
        yield (
            str(neuroncore_index),
            _core_counters(process, snapshot, utilization, by_physical, sum(f or 0.0 for _, f in rates)),
        )


def _other_cores(process: Process, snapshot: Snapshot) -> dict[str, CoreCounters]:
    """The NeuronCores of its devices that it does not hold, which it does not drive: readers look cores up by index."""
    per_device, lnc = _cores_per_device(process, snapshot), process.logical_neuroncore_config
    held = set(process.neuroncore_indices)
    return {
        str(index): _core_counters(
            process, snapshot, 0.0, dict.fromkeys(range(index * lnc, (index + 1) * lnc), 0.0), 0.0
        )
        for device in process.device_indices
        for index in range(device * per_device, (device + 1) * per_device)
        if index not in held
    }


def _core_counters(
    process: Process, snapshot: Snapshot, utilization: float, by_physical: Mapping[int, float], flops: float
) -> CoreCounters:
    """The entry of a logical core: percentages, of the physical ones too where it has several; FLOPS, whole as the
    original has them."""
    whole = round(flops)
    entry: CoreCounters = {"neuroncore_utilization": utilization, "flops": whole, "effective_flops": whole}
    base = (snapshot.instance.neuroncore_version or "").removesuffix("d")
    if process.logical_neuroncore_config > 1 and base:
        entry[f"{base}d"] = {
            f"nc_{base}.{index}": {"neuroncore_utilization": percent} for index, percent in by_physical.items()
        }
    return entry


def _execution_stats(process: Process, period: Period) -> ExecutionStats:
    return {
        "period": _seconds(process, period),
        "error_summary": cast(ErrorSummary, period.counts("errors", process) or _NO_ERRORS),
        "execution_summary": cast(ExecutionSummary, period.counts("executions", process) or _NO_EXECUTIONS),
        "latency_stats": {
            "total_latency": _percentiles(period.latency("total_latency", process)),
            "device_latency": _percentiles(period.latency("device_latency", process)),
        },
        "error": (
            _silence(process, period.now)
            or (_unknown_executions(process) if process.executions is None else "")
            or ("" if period.has_report(process) else _no_report(process, period.now))
        ),
    }


def _memory_used(process: Process, period: Period) -> MemoryUsed:
    host = _host(process.host_memory)
    cores = dict(sorted(_core_memory(process, period.now)))
    cores_per_device = _cores_per_device(process, period.now)
    return {
        "period": period.seconds,
        "neuron_runtime_used_bytes": {
            "host": _sum(host),
            "neuron_device": sum(map(_sum, cores.values())),
            "usage_breakdown": {"host": host, "neuroncore_memory_usage": cores},
        },
        "loaded_models": [_loaded_model(model, cores_per_device) for model in process.models],
        "error": "" if cores or not _is_unattributed(process) else _unknown_cores(process),
    }


def _core_memory(process: Process, snapshot: Snapshot) -> Iterable[tuple[str, CoreBreakdown]]:
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        physical = _physical(process, position, snapshot)
        if not physical:
            continue
        memory = sum_device_memory(core.memory for core in physical)
        usage = {name: getattr(memory, f"{name}_bytes") or 0 for name in _CORE_CATEGORIES}
        yield str(neuroncore_index), cast(CoreBreakdown, usage)


def _physical(process: Process, position: int, snapshot: Snapshot) -> list[NeuronCore]:
    """The physical cores, those that are there, of a logical core by its position among those of the process."""
    lnc = process.logical_neuroncore_config
    indices = process.core_indices[position * lnc : (position + 1) * lnc]
    return [core for index in indices if (core := snapshot.core(index)) is not None]


def _cores_per_device(process: Process, snapshot: Snapshot) -> int:
    """Logical cores of a device, as the process has them."""
    return max(1, snapshot.instance.physical_cores_per_device // process.logical_neuroncore_config)


def _loaded_model(model: LoadedModel, cores_per_device: int) -> LoadedModelEntry:
    return {
        "name": model.name,
        "uuid": model.uuid,
        "model_id": model.model_id,
        "is_running": model.running,
        "subgraphs": {
            f"sg_{subgraph.index:02d}": _subgraph(subgraph, cores_per_device) for subgraph in model.subgraphs
        },
    }


def _subgraph(subgraph: Subgraph, cores_per_device: int) -> SubgraphEntry:
    """The core is counted on its device, as in the original's guide: index 0 on device 12."""
    host, device = _host(subgraph.host_memory), _subgraph_device(subgraph.device_memory)
    return {
        "memory_used_bytes": {
            "host": _sum(host),
            "neuron_device": _sum(device),
            "usage_breakdown": {"host": host, "neuron_device": device},
        },
        "neuroncore_index": subgraph.neuroncore_index % cores_per_device,
        "neuron_device_index": subgraph.device_index,
    }


def _runtime_vcpu_usage(process: Process, period: Period) -> RuntimeVcpuUsage:
    # An invented process spends no vCPU time; that is known.
    user, system = (0.0, 0.0) if process.synthetic else period.vcpu_ratios(process)
    vcpu_count = period.now.host.vcpu_count
    if user is None or system is None or not vcpu_count:
        error = f"the vCPU times of PID {process.pid} can't be read" if period.seconds else ""
        return {"period": period.seconds, "vcpu_usage": {"user": 0.0, "system": 0.0}, "error": error}
    usage = {"user": round(100.0 * user / vcpu_count, 2), "system": round(100.0 * system / vcpu_count, 2)}
    return cast(RuntimeVcpuUsage, {"period": period.seconds, "vcpu_usage": usage, "error": ""})


_WRITERS: dict[str, Callable[[Process, Period], object]] = {
    groups.EXECUTION_STATS: _execution_stats,
    groups.MEMORY_USED: _memory_used,
    groups.RUNTIME_VCPU_USAGE: _runtime_vcpu_usage,
}


def _seconds(process: Process, period: Period) -> float:
    """How long that took what a process tells of itself; of one that is silent, how long nothing came."""
    return period.seconds if _silence(process, period.now) else period.seconds_of(process)


def _silence(process: Process, snapshot: Snapshot) -> str:
    """Why nothing is known of what a process does now; "" when it is."""
    if process.reporting or snapshot.source == SourceKind.SYSFS:
        return ""
    if process.measured_at_seconds is None:
        return f"PID {process.pid} has not reported yet"
    silent_seconds = snapshot.taken_at_seconds - process.measured_at_seconds
    return f"PID {process.pid} last reported {silent_seconds:.0f} s ago"


def _no_report(process: Process, snapshot: Snapshot) -> str:
    """Why nothing is said of what a process executed in this period: its report is late and will be in a later one."""
    if snapshot.source == SourceKind.SYSFS:
        return ""
    return f"PID {process.pid} has not reported since the record before: what it executed is in a later one"


def _is_unattributed(process: Process) -> bool:
    return not process.core_indices


def _unknown_cores(process: Process) -> str:
    devices = ", ".join(map(str, process.device_indices)) or "none"
    return (
        f"which NeuronCores PID {process.pid} holds is unknown: it has device {devices} open, and so have others; "
        "NEURON_RT_VISIBLE_CORES would tell"
    )


def _unknown_utilization(process: Process, period: Period) -> str:
    version = period.now.instance.driver_version or "of an unknown version"
    return (
        f"what the NeuronCores of PID {process.pid} do is unknown: two readings are needed, and driver {version} "
        "may count only when a process ends (before 2.30)"
    )


def _unknown_executions(process: Process) -> str:
    if _is_unattributed(process):
        return _unknown_cores(process)
    return f"the driver does not tell what PID {process.pid} executes while it runs (before 2.30)"


def _percentiles(latency: LatencyPercentiles | None) -> Percentiles | None:
    return None if latency is None else {name: getattr(latency, f"{name}_seconds") for name in _PERCENTILES}


def _host(memory: HostMemory) -> HostBreakdown:
    return cast(HostBreakdown, {name: getattr(memory, f"{name}_bytes") or 0 for name in _HOST_CATEGORIES})


def _subgraph_device(memory: DeviceMemory) -> SubgraphDeviceBreakdown:
    return cast(SubgraphDeviceBreakdown, {name: getattr(memory, f"{name}_bytes") or 0 for name in _SUBGRAPH_CATEGORIES})


def _sum(breakdown: HostBreakdown | CoreBreakdown | SubgraphDeviceBreakdown) -> int:
    return sum(cast(dict[str, int], breakdown).values())
