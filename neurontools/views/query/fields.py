"""The fields that `neuron-ls --query` knows: how each is read, and in which unit it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from neurontools.model import (
    Device,
    DeviceMemory,
    LogicalNeuronCore,
    Process,
    Snapshot,
    TrainingCounters,
    logical_cores,
    sum_device_memory,
)
from neurontools.model.health import Verdict, verdicts
from neurontools.model.training import STEP_PARTS
from neurontools.util.units import rfc3339_text

Value = str | int | float | bool | None | list[int]

_MIB = 2**20
_TERA = 1e12


@dataclass(frozen=True, slots=True)
class Row:
    """What a line of the answer is about: a device, or one of its logical cores with the process that holds it."""

    snapshot: Snapshot
    device: Device
    verdict: Verdict
    device_cores: tuple[LogicalNeuronCore, ...]
    peak_flops_per_core: float | None  # of a physical core, bf16
    core: LogicalNeuronCore | None = None
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """How a base unit is shown in CSV: 1073741824 bytes as 1024 MiB."""

    name: str  # behind the field in the header and behind the value; "" for none
    per: float = 1.0
    decimals: int = 0


PLAIN = Unit("")
MEMORY = Unit("MiB", _MIB)
PERCENT = Unit("%", 0.01, 2)
FLOPS = Unit("TFLOPS", _TERA, 3)
SECONDS = Unit("s", 1.0, 3)
DOLLARS = Unit("USD", 1.0, 4)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `json_name` has the base unit in it, in which `read` answers; None is unknown or not there."""

    name: str
    json_name: str
    unit: Unit
    text: str  # for --help-query
    read: Callable[[Row], Value]

    @property
    def is_of_core(self) -> bool:
        """Whether it wants a line for each core."""
        return self.name.startswith(("neuroncore.", "process."))


def _memory(row: Row) -> int | None:
    return sum_device_memory(core.memory for core in row.device_cores).total_bytes


def _stacks(row: Row) -> int | None:
    used = [stack.used_bytes for stack in row.device.hbm_stacks]
    return sum(size or 0 for size in used) if used and None not in used else _memory(row)


def _mean(cores: tuple[LogicalNeuronCore, ...]) -> float | None:
    known = [core.utilization_ratio for core in cores if core.utilization_ratio is not None]
    return sum(known) / len(known) if known else None


def _flops(cores: tuple[LogicalNeuronCore, ...]) -> float | None:
    known = [core.flops_per_second for core in cores if core.flops_per_second is not None]
    return sum(known) if known else None


def _mfu(row: Row, cores: tuple[LogicalNeuronCore, ...]) -> float | None:
    flops = _flops(cores)
    physical = sum(len(core.cores) for core in cores)
    return flops / (row.peak_flops_per_core * physical) if flops is not None and row.peak_flops_per_core else None


def _cores(row: Row) -> tuple[LogicalNeuronCore, ...]:
    return () if row.core is None else (row.core,)


def _pids(row: Row) -> list[int]:
    return sorted({pid for core in row.device_cores for pid in (*core.owner_pids, *core.candidate_pids)})


def _since(row: Row) -> float | None:
    """Seconds since the core's latest execution; None when nobody holds it."""
    if row.core is None or not row.core.owner_pids:
        return None
    last = [core.last_execution_at_unix_seconds for core in row.core.cores if core.last_execution_at_unix_seconds]
    return max(0.0, row.snapshot.taken_at_unix_seconds - max(last)) if last else None


def _of_process(name: str) -> Callable[[Row], Value]:
    return lambda row: None if row.process is None else getattr(row.process, name)


def _of_attribution(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.process.attribution, name, None) if row.process is not None else None


def _of_latency(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.process.total_latency, name, None) if row.process is not None else None


def _of_rates(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.process.training_rates, name, None) if row.process is not None else None


def _of_training(read: Callable[[TrainingCounters, float], float | None]) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        counters = row.process.training if row.process is not None else None
        return None if counters is None else read(counters, row.snapshot.taken_at_seconds)

    return value


def _of_ecc(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.device.ecc, name)


def _of_memory(name: str) -> Callable[[Row], Value]:
    return lambda row: None if row.core is None else getattr(row.core.memory, name)


def _list_price(instance_type: str) -> float | None:
    """None where no price is published, or the type isn't known."""
    from neurontools import catalog

    try:
        return catalog.load(instance_type).on_demand_usd_per_hour.value
    except catalog.UnknownInstanceType:
        return None


def _timestamp(row: Row) -> str:
    """When the daemon looked: RFC 3339 in UTC."""
    return rfc3339_text(row.snapshot.taken_at_unix_seconds)


DEVICE_FIELDS = (
    Field("timestamp", "timestamp", PLAIN, "when the daemon looked, in UTC", _timestamp),
    Field("index", "index", PLAIN, "index of the device", lambda row: row.device.index),
    Field("bdf", "bdf", PLAIN, "PCI address", lambda row: row.device.bdf),
    Field(
        "instance_type", "instance_type", PLAIN, "type of the instance", lambda row: row.snapshot.instance.instance_type
    ),
    Field(
        "price_per_hour",
        "list_price_usd_per_hour",
        DOLLARS,
        "list price of the whole instance on demand, US dollars an hour",
        lambda row: _list_price(row.snapshot.instance.instance_type),
    ),
    Field("instance_id", "instance_id", PLAIN, "id of the instance", lambda row: row.snapshot.instance.instance_id),
    Field("serial", "serial_number", PLAIN, "serial number of the device", lambda row: row.device.serial_number),
    Field("numa_node", "numa_node", PLAIN, "NUMA node", lambda row: row.device.numa_node),
    Field("cpu_affinity", "cpu_affinity", PLAIN, "vCPUs near the device", lambda row: row.device.cpu_affinity),
    Field("connected_to", "connected_to", PLAIN, "NeuronLink neighbours", lambda row: list(row.device.connected_to)),
    Field("count", "neuroncore_count", PLAIN, "logical NeuronCores of the device", lambda row: len(row.device_cores)),
    Field(
        "free",
        "free_neuroncore_count",
        PLAIN,
        "logical NeuronCores that nobody holds for certain",
        lambda row: sum(core.is_free is True for core in row.device_cores),
    ),
    Field("pids", "pids", PLAIN, "processes that hold cores of the device, or have it open and may", _pids),
    Field("memory.total", "memory_total_bytes", MEMORY, "HBM of the device", lambda row: row.device.memory_bytes),
    Field("memory.used", "memory_used_bytes", MEMORY, "HBM in use", _stacks),
    Field(
        "memory.free",
        "memory_free_bytes",
        MEMORY,
        "HBM not in use",
        lambda row: None if (used := _stacks(row)) is None else row.device.memory_bytes - used,
    ),
    Field("utilization", "utilization_ratio", PERCENT, "mean of its cores", lambda row: _mean(row.device_cores)),
    Field("flops", "flops_per_second", FLOPS, "sum of its cores", lambda row: _flops(row.device_cores)),
    Field("mfu", "mfu_ratio", PERCENT, "FLOPS against the peak for bf16", lambda row: _mfu(row, row.device_cores)),
    Field(
        "power",
        "power_average_ratio",
        PERCENT,
        "power of the last minute as a share of the maximum",
        lambda row: row.device.power.average_ratio if row.device.power else None,
    ),
    *(
        Field(f"ecc.{where}.{what}", f"ecc_{where}_{what}_total", PLAIN, text, _of_ecc(f"{where}_{what}_total"))
        for where, what, text in (
            ("mem", "corrected", "corrected errors in HBM since the driver was loaded"),
            ("mem", "uncorrected", "uncorrected errors in HBM"),
            ("sram", "corrected", "corrected errors in SRAM"),
            ("sram", "uncorrected", "uncorrected errors in SRAM"),
        )
    ),
    Field(
        "health",
        "health",
        PLAIN,
        "ok, notice, warning or critical; unknown where nobody tells",
        lambda row: row.verdict.severity_name,
    ),
    Field(
        "health.reason",
        "health_reason",
        PLAIN,
        "the gravest finding",
        lambda row: row.verdict.findings[0].reason if row.verdict.findings else None,
    ),
)
CORE_FIELDS = (
    Field(
        "neuroncore.index", "neuroncore_index", PLAIN, "logical index", lambda row: row.core.index if row.core else None
    ),
    Field(
        "neuroncore.held",
        "neuroncore_held",
        PLAIN,
        "whether a process holds it",
        lambda row: None if row.core is None or row.core.is_free is None else not row.core.is_free,
    ),
    Field(
        "neuroncore.candidates",
        "neuroncore_candidate_pids",
        PLAIN,
        "processes that have the device open and may hold it",
        lambda row: list(row.core.candidate_pids) if row.core else None,
    ),
    Field(
        "neuroncore.utilization",
        "neuroncore_utilization_ratio",
        PERCENT,
        "share of the last period in executions",
        lambda row: _mean(_cores(row)),
    ),
    Field("neuroncore.flops", "neuroncore_flops_per_second", FLOPS, "FLOPS", lambda row: _flops(_cores(row))),
    Field(
        "neuroncore.mfu", "neuroncore_mfu_ratio", PERCENT, "FLOPS against the peak", lambda row: _mfu(row, _cores(row))
    ),
    Field("neuroncore.idle", "neuroncore_idle_seconds", SECONDS, "since its last execution, while it is held", _since),
    Field(
        "neuroncore.memory.used",
        "neuroncore_memory_used_bytes",
        MEMORY,
        "its memory, all categories",
        lambda row: row.core.memory.total_bytes if row.core else None,
    ),
    *(
        Field(
            f"neuroncore.memory.{field.name.removesuffix('_bytes')}",
            f"neuroncore_memory_{field.name}",
            MEMORY,
            "its memory of this category",
            _of_memory(field.name),
        )
        for field in fields(DeviceMemory)
    ),
    Field("process.pid", "process_pid", PLAIN, "who holds the core", _of_process("pid")),
    Field(
        "process.inferred",
        "process_inferred",
        PLAIN,
        "whether that it holds the core was concluded: it alone has the device open",
        lambda row: row.core.is_owner_inferred if row.core and row.process else None,
    ),
    Field("process.user", "process_user", PLAIN, "its user", _of_process("user")),
    Field("process.tag", "process_tag", PLAIN, "NEURON_PROCESS_TAG, else the PID", _of_process("tag")),
    Field("process.command", "process_command", PLAIN, "its command line", _of_process("command")),
    Field("process.runtime_version", "process_runtime_version", PLAIN, "its runtime", _of_process("runtime_version")),
    Field(
        "process.executions",
        "process_executions_per_second",
        Unit("1/s", 1.0, 2),
        "executions a second",
        _of_process("executions_per_second"),
    ),
    Field(
        "process.steps",
        "process_steps_per_second",
        Unit("1/s", 1.0, 2),
        "optimizer steps a second",
        _of_rates("steps_per_second"),
    ),
    Field(
        "process.last_step",
        "process_since_last_step_seconds",
        SECONDS,
        "since its latest optimizer step ended",
        _of_training(TrainingCounters.since_last_step_seconds),
    ),
    Field(
        "process.compiling",
        "process_compiling_for_seconds",
        SECONDS,
        "how long it has been waiting for a program, if it does now",
        _of_training(TrainingCounters.compiling_for_seconds),
    ),
    *(
        Field(
            f"process.step_time.{part.ratio.removesuffix('_ratio')}",
            f"process_step_time_{part.ratio}",
            PERCENT,
            f"share of its time: {part.name}",
            _of_rates(part.ratio),
        )
        for part in STEP_PARTS
    ),
    Field("process.latency.p50", "process_latency_p50_seconds", SECONDS, "median latency", _of_latency("p50_seconds")),
    Field("process.latency.p99", "process_latency_p99_seconds", SECONDS, "99th percentile", _of_latency("p99_seconds")),
    Field("process.pod", "process_pod", PLAIN, "its pod", _of_attribution("pod_name")),
    Field("process.namespace", "process_namespace", PLAIN, "the pod's namespace", _of_attribution("pod_namespace")),
    Field("process.container", "process_container_id", PLAIN, "its container", _of_attribution("container_id")),
    Field("process.slurm_job", "process_slurm_job_id", PLAIN, "its Slurm job", _of_attribution("slurm_job_id")),
)
FIELDS = {field.name: field for field in (*DEVICE_FIELDS, *CORE_FIELDS)}


def rows(
    snapshot: Snapshot,
    peak_flops_per_core: float | None,
    lnc: int | None,
    device_indices: tuple[int, ...],
    *,
    of_cores: bool,
) -> list[Row]:
    """A row for each device, or for each logical core; no `device_indices`: of all devices."""
    cores: dict[int, list[LogicalNeuronCore]] = {}
    for core in logical_cores(snapshot, lnc):
        cores.setdefault(core.device_index, []).append(core)
    by_device = {verdict.device_index: verdict for verdict in verdicts(snapshot)}
    by_pid = {process.pid: process for process in snapshot.processes}
    made = []
    for device in snapshot.devices:
        if device_indices and device.index not in device_indices:
            continue
        verdict = by_device.get(device.index, Verdict(device.index, is_known=False))
        own = tuple(cores.get(device.index, ()))
        if not of_cores:
            made.append(Row(snapshot, device, verdict, own, peak_flops_per_core))
        for core in own if of_cores else ():
            owner = by_pid.get(core.owner_pids[0]) if core.owner_pids else None
            made.append(Row(snapshot, device, verdict, own, peak_flops_per_core, core, owner))
    return made
