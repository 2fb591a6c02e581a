"""The fields of `neuron-ls --query`, and its output as CSV or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

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
from neurontools.model.health import Verdict, marked_reason, verdicts
from neurontools.model.process import STEP_PARTS
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import csv_line, foreign_cell, json_text
from neurontools.util.terminal import error_excerpt
from neurontools.util.units import UNKNOWN, mean_known, rfc3339_text, sum_known

FieldValue = str | int | float | bool | None | list[int]
FORMATS = ("csv", "json", "noheader", "nounits")


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The data for one output line: a device, or a logical core of a device with the process that holds the core.

    A missing device has one row without a core, because its cores are unknown.
    """

    snapshot: Snapshot
    device_index: int
    device: Device | None  # None: the device is missing
    verdict: Verdict
    device_cores: tuple[LogicalNeuronCore, ...]
    peak_flops_per_core: float | None  # peak bf16 FLOPS of a physical core
    core: LogicalNeuronCore | None = None
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class DisplayUnit:
    """The unit in which CSV shows a field, for example MiB for bytes. `per` is its size in base units."""

    name: str  # printed after the field name in the header, and after each value; "": no unit
    per: float = 1.0
    decimals: int = 0


PLAIN = DisplayUnit("")
MEMORY = DisplayUnit("MiB", 2**20)
PERCENT = DisplayUnit("%", 0.01, 2)
TFLOPS = DisplayUnit("TFLOPS", 1e12, 3)
SECONDS = DisplayUnit("s", 1.0, 3)
PER_SECOND = DisplayUnit("1/s", 1.0, 2)
DOLLARS = DisplayUnit("USD", 1.0, 4)
WATTS = DisplayUnit("W", 1.0, 1)
KWH = DisplayUnit("kWh", 1.0, 4)


@dataclass(frozen=True, slots=True)
class QueryField:
    """A field that --query can select. `json_name` is its JSON key, with the base unit. `read` returns its value."""

    name: str
    json_name: str
    unit: DisplayUnit
    text: str  # description for --help-query
    read: Callable[[QueryRow], FieldValue]

    @property
    def is_of_core(self) -> bool:
        """Whether the output needs a line per NeuronCore, not per device, to show this field."""
        return self.name.startswith(("neuroncore.", "process."))


def _hbm_used(row: QueryRow) -> int | None:
    if row.device is None:
        return None
    used = [stack.used_bytes for stack in row.device.hbm_stacks]
    if used and None not in used:
        return sum_known(used)
    return sum_device_memory(core.memory for core in row.device_cores).total_bytes


def _mfu(row: QueryRow, cores: tuple[LogicalNeuronCore, ...]) -> float | None:
    flops = sum_known(core.flops_per_second for core in cores)
    physical = sum(len(core.cores) for core in cores)
    return flops / (row.peak_flops_per_core * physical) if flops is not None and row.peak_flops_per_core else None


def _device_pids(row: QueryRow) -> list[int]:
    return sorted({pid for core in row.device_cores for pid in (*core.owner_pids, *core.candidate_pids)})


def _idle_seconds(row: QueryRow) -> float | None:
    """Returns the seconds since the last execution on a core; None if the core is free or the time unknown."""
    if row.core is None or not row.core.owner_pids:
        return None
    last = [core.last_execution_at_unix_seconds for core in row.core.cores if core.last_execution_at_unix_seconds]
    return max(0.0, row.snapshot.taken_at_unix_seconds - max(last)) if last else None


def _read(path: str) -> Callable[[QueryRow], FieldValue]:
    """Returns a function that reads a dotted path of attributes from a row; None if an attribute on the way is None."""

    def read(row: QueryRow) -> Any:
        value: Any = row
        for name in path.split("."):
            if value is None:
                break
            value = getattr(value, name)
        return value

    return read


def _of_present(read: Callable[[QueryRow], FieldValue]) -> Callable[[QueryRow], FieldValue]:
    """Returns a function that reads a value of a present device; None for a missing device."""
    return lambda row: None if row.device is None else read(row)


def _training_field(read: Callable[[TrainingCounters, float], float | None]) -> Callable[[QueryRow], FieldValue]:
    def value(row: QueryRow) -> FieldValue:
        counters = row.process.training if row.process is not None else None
        return None if counters is None else read(counters, row.snapshot.taken_at_seconds)

    return value


def _list_price(row: QueryRow) -> float | None:
    """Returns the on-demand price of the instance in US dollars per hour; None if it is unknown."""
    from neurontools import catalog

    return catalog.on_demand_usd_per_hour(row.snapshot.instance.instance_type)


def _consumed(name: str) -> Callable[[QueryRow], FieldValue]:
    """Returns a function that reads a field of the consumption of the core's process."""

    def value(row: QueryRow) -> FieldValue:
        from neurontools.views.consumption import consumption

        return None if row.process is None else getattr(consumption((row.process,), row.snapshot), name)

    return value


DEVICE_FIELDS = (
    QueryField(
        "timestamp",
        "timestamp",
        PLAIN,
        "time of the snapshot, in UTC",
        lambda row: rfc3339_text(row.snapshot.taken_at_unix_seconds),
    ),
    QueryField("index", "index", PLAIN, "index of the device", _read("device_index")),
    QueryField("present", "present", PLAIN, "no if the device is missing", lambda row: row.device is not None),
    QueryField("bdf", "bdf", PLAIN, "PCI address", _read("device.bdf")),
    QueryField(
        "instance_type", "instance_type", PLAIN, "type of the instance", _read("snapshot.instance.instance_type")
    ),
    QueryField(
        "price_per_hour",
        "list_price_usd_per_hour",
        DOLLARS,
        "list price of the whole instance on demand, US dollars an hour",
        _list_price,
    ),
    QueryField("instance_id", "instance_id", PLAIN, "id of the instance", _read("snapshot.instance.instance_id")),
    QueryField("serial", "serial_number", PLAIN, "serial number of the device", _read("device.serial_number")),
    QueryField("numa_node", "numa_node", PLAIN, "NUMA node", _read("device.numa_node")),
    QueryField("cpu_affinity", "cpu_affinity", PLAIN, "vCPUs near the device", _read("device.cpu_affinity")),
    QueryField(
        "connected_to",
        "connected_to",
        PLAIN,
        "NeuronLink neighbours",
        lambda row: list(row.device.connected_to) if row.device else None,
    ),
    QueryField(
        "count",
        "neuroncore_count",
        PLAIN,
        "logical NeuronCores of the device",
        _of_present(lambda row: len(row.device_cores)),
    ),
    QueryField(
        "free",
        "free_neuroncore_count",
        PLAIN,
        "logical NeuronCores known to be free",
        _of_present(lambda row: sum(core.is_free is True for core in row.device_cores)),
    ),
    QueryField("pids", "pids", PLAIN, "processes that hold or may hold cores of the device", _of_present(_device_pids)),
    QueryField("memory.total", "memory_total_bytes", MEMORY, "HBM of the device", _read("device.memory_bytes")),
    QueryField("memory.used", "memory_used_bytes", MEMORY, "HBM in use", _hbm_used),
    QueryField(
        "memory.free",
        "memory_free_bytes",
        MEMORY,
        "HBM not in use",
        lambda row: None if row.device is None or (used := _hbm_used(row)) is None else row.device.memory_bytes - used,
    ),
    QueryField(
        "utilization",
        "utilization_ratio",
        PERCENT,
        "mean of its cores",
        lambda row: mean_known(core.utilization_ratio for core in row.device_cores),
    ),
    QueryField(
        "flops",
        "flops_per_second",
        TFLOPS,
        "sum of its cores",
        lambda row: sum_known(core.flops_per_second for core in row.device_cores),
    ),
    QueryField("mfu", "mfu_ratio", PERCENT, "FLOPS against the peak for bf16", lambda row: _mfu(row, row.device_cores)),
    QueryField(
        "power",
        "power_average_ratio",
        PERCENT,
        "power of the last minute as a share of the maximum",
        _read("device.power.average_ratio"),
    ),
    *(
        QueryField(
            f"ecc.{where}.{meaning}",
            f"ecc_{where}_{meaning}_total",
            PLAIN,
            text,
            _read(f"device.ecc.{where}_{meaning}_total"),
        )
        for where, meaning, text in (
            ("mem", "corrected", "corrected errors in HBM since the driver was loaded"),
            ("mem", "uncorrected", "uncorrected errors in HBM"),
            ("sram", "corrected", "corrected errors in SRAM"),
            ("sram", "uncorrected", "uncorrected errors in SRAM"),
        )
    ),
    QueryField(
        "health",
        "health",
        PLAIN,
        "ok, notice, warning or critical; unknown without a verdict",
        _read("verdict.severity_name"),
    ),
    QueryField(
        "health.reason",
        "health_reason",
        PLAIN,
        "the most severe finding, or why the health is unknown",
        lambda row: marked_reason(row.verdict.findings[0]) if row.verdict.findings else row.verdict.unknown_reason,
    ),
)


CORE_FIELDS = (
    QueryField("neuroncore.index", "neuroncore_index", PLAIN, "logical index", _read("core.index")),
    QueryField(
        "neuroncore.held",
        "neuroncore_held",
        PLAIN,
        "whether a process holds it",
        lambda row: None if row.core is None or row.core.is_free is None else not row.core.is_free,
    ),
    QueryField(
        "neuroncore.candidates",
        "neuroncore_candidate_pids",
        PLAIN,
        "processes that have the device open and may hold it",
        lambda row: list(row.core.candidate_pids) if row.core else None,
    ),
    QueryField(
        "neuroncore.utilization",
        "neuroncore_utilization_ratio",
        PERCENT,
        "share of the last period spent executing",
        _read("core.utilization_ratio"),
    ),
    QueryField("neuroncore.flops", "neuroncore_flops_per_second", TFLOPS, "FLOPS", _read("core.flops_per_second")),
    QueryField(
        "neuroncore.mfu",
        "neuroncore_mfu_ratio",
        PERCENT,
        "FLOPS against the peak",
        lambda row: _mfu(row, () if row.core is None else (row.core,)),
    ),
    QueryField(
        "neuroncore.idle",
        "neuroncore_idle_seconds",
        SECONDS,
        "time since its last execution, if it is held",
        _idle_seconds,
    ),
    QueryField(
        "neuroncore.memory.used",
        "neuroncore_memory_used_bytes",
        MEMORY,
        "its memory, all categories",
        _read("core.memory.total_bytes"),
    ),
    *(
        QueryField(
            f"neuroncore.memory.{field.name.removesuffix('_bytes')}",
            f"neuroncore_memory_{field.name}",
            MEMORY,
            "its memory of this category",
            _read(f"core.memory.{field.name}"),
        )
        for field in fields(DeviceMemory)
    ),
    QueryField("process.pid", "process_pid", PLAIN, "PID of the process that holds the core", _read("process.pid")),
    QueryField(
        "process.inferred",
        "process_inferred",
        PLAIN,
        "whether the owner is inferred: no other process has the device open",
        lambda row: row.core.is_owner_inferred if row.core and row.process else None,
    ),
    QueryField("process.user", "process_user", PLAIN, "its user", _read("process.user")),
    QueryField("process.tag", "process_tag", PLAIN, "NEURON_PROCESS_TAG, else the PID", _read("process.tag")),
    QueryField("process.command", "process_command", PLAIN, "its command line", _read("process.command")),
    QueryField(
        "process.runtime_version", "process_runtime_version", PLAIN, "its runtime", _read("process.runtime_version")
    ),
    QueryField(
        "process.executions",
        "process_executions_per_second",
        PER_SECOND,
        "executions a second",
        _read("process.executions_per_second"),
    ),
    QueryField(
        "process.steps",
        "process_steps_per_second",
        PER_SECOND,
        "training steps a second",
        _read("process.training_rates.steps_per_second"),
    ),
    QueryField(
        "process.last_step",
        "process_since_last_step_seconds",
        SECONDS,
        "time since its last training step",
        _training_field(TrainingCounters.since_last_step_seconds),
    ),
    QueryField(
        "process.compiling",
        "process_compiling_for_seconds",
        SECONDS,
        "how long it has been compiling, if it is compiling now",
        _training_field(TrainingCounters.compiling_for_seconds),
    ),
    *(
        QueryField(
            f"process.step_time.{part.ratio.removesuffix('_ratio')}",
            f"process_step_time_{part.ratio}",
            PERCENT,
            f"share of step time: {part.name}",
            _read(f"process.training_rates.{part.ratio}"),
        )
        for part in STEP_PARTS
    ),
    QueryField(
        "process.latency.p50",
        "process_latency_p50_seconds",
        SECONDS,
        "median latency",
        _read("process.total_latency.p50_seconds"),
    ),
    QueryField(
        "process.latency.p99",
        "process_latency_p99_seconds",
        SECONDS,
        "99th percentile",
        _read("process.total_latency.p99_seconds"),
    ),
    QueryField(
        "process.power",
        "process_power_ratio",
        PERCENT,
        "its share of the power of the last minute; 100 is one device at its maximum",
        _consumed("power_ratio"),
    ),
    QueryField("process.watts", "process_power_watts", WATTS, "the same in watts", _consumed("power_watts")),
    QueryField("process.energy", "process_energy_kwh", KWH, "its energy so far", _consumed("energy_kwh")),
    QueryField(
        "process.cost",
        "process_cost_usd",
        DOLLARS,
        "list price of its cores for the time that it has held them",
        _consumed("cost_usd"),
    ),
    QueryField("process.pod", "process_pod", PLAIN, "its pod", _read("process.attribution.pod_name")),
    QueryField(
        "process.namespace",
        "process_namespace",
        PLAIN,
        "the pod's namespace",
        _read("process.attribution.pod_namespace"),
    ),
    QueryField(
        "process.container", "process_container_id", PLAIN, "its container", _read("process.attribution.container_id")
    ),
    QueryField(
        "process.slurm_job", "process_slurm_job_id", PLAIN, "its Slurm job", _read("process.attribution.slurm_job_id")
    ),
)
FIELDS = {field.name: field for field in (*DEVICE_FIELDS, *CORE_FIELDS)}


def query_rows(
    snapshot: Snapshot,
    peak_flops_per_core: float | None,
    lnc: int | None,
    device_indices: tuple[int, ...],
    *,
    of_cores: bool,
) -> list[QueryRow]:
    """Returns the data of a row per device, present or missing, or per logical core.

    Empty `device_indices` means all devices.
    """
    cores: dict[int, list[LogicalNeuronCore]] = {}
    for core in logical_cores(snapshot, lnc):
        cores.setdefault(core.device_index, []).append(core)
    by_device = {verdict.device_index: verdict for verdict in verdicts(snapshot)}
    by_pid = {process.pid: process for process in snapshot.processes}
    rows = []
    for index, device in snapshot.devices_by_index.items():
        if device_indices and index not in device_indices:
            continue
        verdict = by_device.get(index, Verdict(index, is_known=False))
        own = tuple(cores.get(index, ()))
        row = QueryRow(snapshot, index, device, verdict, own, peak_flops_per_core)
        if not of_cores or device is None:
            rows.append(row)
        for core in own if of_cores else ():
            owner = by_pid.get(core.owner_pids[0]) if core.owner_pids else None
            rows.append(replace(row, core=core, process=owner))
    return rows


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The parsed option --format of neuron-ls."""

    is_json: bool = False
    has_header: bool = True
    has_units: bool = True


def parse_fields(text: str) -> tuple[QueryField, ...]:
    """Parses the option --query. Raises UserError for an unknown field."""
    chosen = []
    for part in text.split(","):
        name = part.strip()
        field = FIELDS.get(name)
        if field is None:
            near = get_close_matches(name, FIELDS, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise UserError(
                f"--query: {error_excerpt(name)} is not a field{guess}; --help-query lists them", EXIT_USAGE
            )
        chosen.append(field)
    return tuple(chosen)


def parse_format(text: str) -> OutputFormat:
    """Parses the option --format. Raises UserError for an unknown or missing part."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in FORMATS:
            raise UserError(f"--format: {error_excerpt(part)} is not one of {', '.join(FORMATS)}", EXIT_USAGE)
    if ("csv" in parts) == ("json" in parts):
        raise UserError("--format: give one of csv and json, such as --format csv,noheader,nounits", EXIT_USAGE)
    return OutputFormat("json" in parts, "noheader" not in parts, "nounits" not in parts)


def query_text(fields: Sequence[QueryField], rows: Sequence[QueryRow], form: OutputFormat) -> str:
    if form.is_json:
        return _query_json(fields, rows, indent=2)
    header = [f"{field.name} [{field.unit.name}]" if field.unit.name else field.name for field in fields]
    lines = [csv_line(header)] if form.has_header else []
    lines += [csv_line(_csv_cell(field, field.read(row), form) for field in fields) for row in rows]
    return "".join(lines)


def streamed_query_text(
    fields: Sequence[QueryField], rows: Sequence[QueryRow], form: OutputFormat, *, is_first: bool
) -> str:
    """Returns the output of --query for one of several repetitions.

    In CSV, only the first repetition has a header. In JSON, each repetition is an array on one line.
    """
    if form.is_json:
        return _query_json(fields, rows, indent=None)
    return query_text(fields, rows, form if is_first else replace(form, has_header=False))


def _query_json(fields: Sequence[QueryField], rows: Sequence[QueryRow], indent: int | None) -> str:
    return json_text([{field.json_name: field.read(row) for field in fields} for row in rows], indent=indent) + "\n"


def field_help() -> str:
    """Returns the text of --help-query."""
    width = max(map(len, FIELDS))
    lines = [
        f"  {field.name:<{width}}  {field.text}{f' [{field.unit.name}]' if field.unit.name else ''}"
        for field in FIELDS.values()
    ]
    return (
        "Fields for --query, separated by commas. With a field of a NeuronCore or a process there is a line for each\n"
        "core, else one for each device.\n\n" + "\n".join(lines) + "\n"
    )


def _csv_cell(field: QueryField, value: FieldValue, form: OutputFormat) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or UNKNOWN
    if isinstance(value, str):
        return foreign_cell(value) or UNKNOWN
    if field.unit is PLAIN:
        return str(value)
    text = f"{value / field.unit.per:.{field.unit.decimals}f}"
    return f"{text} {field.unit.name}" if form.has_units else text
