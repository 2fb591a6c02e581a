"""The difference between two snapshots or recordings of a host: `neuron-top --diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from neurontools.model import Device, Finding, Process, Snapshot, health
from neurontools.model.health import Verdict
from neurontools.util import units
from neurontools.util.formats import json_text
from neurontools.util.terminal import cell_width, escape_controls, excerpt
from neurontools.util.units import date_text, mean_known, ranges_text, rfc3339_text, sum_known
from neurontools.views.drawing.figures import Figures, ProcessFigures, weighted_mean

ComparedValue = float | int | str | None
ProcessTest = Callable[[ProcessFigures], bool]
ComparedJob = Sequence[ProcessFigures]  # the processes of a job in one snapshot
SCHEMA_VERSION = 1
NOISE_RATIO = 0.05  # the table leaves out relative changes up to this size
_NOISE_POINTS = 0.01  # the table leaves out smaller changes of ratios, such as a utilization of 0.505 after 0.5
_TITLE_CELLS, _VALUE_CELLS = 26, 18
_MOST_NAME_CELLS = 60


class Aggregate(Enum):
    """How to combine the values that a quantity has in several snapshots."""

    MEAN = "mean"
    PEAK = "peak"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """A quantity that the comparison covers. `name` includes the base unit; `text` formats a value.

    If `is_count`, every change is a difference, however small.
    """

    name: str
    title: str
    over: Aggregate
    text: Callable[[ComparedValue], str]
    is_count: bool = False


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device in one snapshot, with its health verdict and all figures of the snapshot."""

    device: Device
    verdict: Verdict
    figures: Figures


def _value_text(format_: Callable[..., str]) -> Callable[[ComparedValue], str]:
    return lambda value: value if isinstance(value, str) else format_(value)


def _rate_text(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"{value:.2f}/s"


def _count_text(value: float | None) -> str:
    return units.UNKNOWN if value is None else units.count_text(round(value))


def _bytes_text(value: float | None) -> str:
    return units.bytes_text(None if value is None else round(value))


_PERCENT, _FLOPS = _value_text(units.percent_text), _value_text(units.flops_text)
_SECONDS, _SIZE = _value_text(units.duration_text), _value_text(_bytes_text)
_A_SECOND, _NUMBER = _value_text(_rate_text), _value_text(_count_text)
UTILIZATION = ComparedQuantity("utilization_ratio", "utilization", Aggregate.MEAN, _PERCENT)
FLOPS = ComparedQuantity("flops_per_second", "FLOPS", Aggregate.MEAN, _FLOPS)


HOST_QUANTITIES: dict[ComparedQuantity, Callable[[Figures], ComparedValue]] = {
    UTILIZATION: lambda figures: figures.average_utilization(None),
    FLOPS: lambda figures: figures.flops(None),
    ComparedQuantity("free_neuroncores", "free NeuronCores", Aggregate.MEAN, _NUMBER, is_count=True): lambda figures: (
        sum(core.is_free is True for core in figures.cores)
    ),
    ComparedQuantity("device_memory_bytes", "device memory", Aggregate.PEAK, _SIZE): lambda figures: (
        figures.device_memory(None).total_bytes
    ),
    ComparedQuantity("host_memory_used_bytes", "host memory in use", Aggregate.PEAK, _SIZE): lambda figures: (
        figures.snapshot.host.memory_used_bytes
    ),
    ComparedQuantity("warnings", "warnings", Aggregate.LAST, _NUMBER, is_count=True): lambda figures: len(
        figures.snapshot.warnings
    ),
}


def _job_cores_text(job: ComparedJob) -> str:
    indices = {index for each in job for index in each.process.neuroncore_indices}
    return f"NeuronCore{'s' * (len(indices) > 1)} {ranges_text(indices)}" if indices else units.UNKNOWN


def _step_rate(each: ProcessFigures) -> float | None:
    counters, rates = each.process.training, each.process.training_rates
    return rates.steps_per_second if counters is not None and counters.steps_total and rates is not None else None


def _latency_reader(quantile: str) -> Callable[[ComparedJob], ComparedValue]:
    def read(job: ComparedJob) -> ComparedValue:
        latencies = [each.process.total_latency for each in job]
        return max((getattr(each, f"{quantile}_seconds") for each in latencies if each is not None), default=None)

    return read


def _sum_reader(name: str) -> Callable[[ComparedJob], ComparedValue]:
    return lambda job: sum_known(getattr(each, name) for each in job)


def _mean_reader(name: str) -> Callable[[ComparedJob], ComparedValue]:
    """Returns a function that reads the mean of a ratio over a job's processes, weighted by their cores.

    All cores of a host have the same peak FLOPS, so this mean of the MFU is the MFU of the job.
    """
    return lambda job: weighted_mean((getattr(each, name), each.core_count) for each in job)


JOB_QUANTITIES: dict[ComparedQuantity, Callable[[ComparedJob], ComparedValue]] = {
    ComparedQuantity("process_count", "processes", Aggregate.PEAK, _NUMBER, is_count=True): len,
    ComparedQuantity("neuroncores", "cores", Aggregate.LAST, _value_text(str)): _job_cores_text,
    UTILIZATION: _mean_reader("utilization_ratio"),
    FLOPS: _sum_reader("flops_per_second"),
    ComparedQuantity("mfu_ratio", "MFU", Aggregate.MEAN, _PERCENT): _mean_reader("mfu_ratio"),
    ComparedQuantity("steps_per_second", "steps", Aggregate.MEAN, _A_SECOND): lambda job: mean_known(
        map(_step_rate, job)
    ),
    ComparedQuantity("executions_per_second", "executions", Aggregate.MEAN, _A_SECOND): lambda job: sum_known(
        each.process.executions_per_second for each in job
    ),
    ComparedQuantity("collective_ratio", "time in collectives", Aggregate.MEAN, _PERCENT): lambda job: mean_known(
        getattr(each.process.training_rates, "collective_ratio", None) for each in job
    ),
    ComparedQuantity("latency_p50_seconds", "median latency", Aggregate.MEAN, _SECONDS): _latency_reader("p50"),
    ComparedQuantity("latency_p99_seconds", "99th percentile", Aggregate.PEAK, _SECONDS): _latency_reader("p99"),
    ComparedQuantity("device_memory_bytes", "device memory", Aggregate.PEAK, _SIZE): _sum_reader("device_memory_bytes"),
    ComparedQuantity("host_memory_bytes", "host memory", Aggregate.PEAK, _SIZE): _sum_reader("host_memory_bytes"),
    ComparedQuantity("errors_total", "errors", Aggregate.LAST, _NUMBER, is_count=True): _sum_reader("errors_total"),
    ComparedQuantity(
        "executions_failed_total", "failed executions", Aggregate.LAST, _NUMBER, is_count=True
    ): _sum_reader("failed_executions_total"),
}


def _device_position(state: DeviceState) -> int:
    return next(place for place, device in enumerate(state.figures.snapshot.devices) if device is state.device)


def _ecc_reader(fields: Sequence[str]) -> Callable[[DeviceState], ComparedValue]:
    return lambda state: sum_known(getattr(state.device.ecc, field) for field in fields)


DEVICE_QUANTITIES: dict[ComparedQuantity, Callable[[DeviceState], ComparedValue]] = {
    ComparedQuantity("health", "health", Aggregate.LAST, _value_text(lambda _: "unknown")): lambda state: (
        state.verdict.severity_name
    ),
    UTILIZATION: lambda state: state.figures.device_utilization[_device_position(state)],
    ComparedQuantity("memory_used_bytes", "memory in use", Aggregate.PEAK, _SIZE): lambda state: (
        state.figures.device_used_bytes[_device_position(state)]
    ),
    ComparedQuantity("power_average_ratio", "power", Aggregate.MEAN, _PERCENT): lambda state: (
        state.device.power.average_ratio if state.device.power is not None else None
    ),
    ComparedQuantity(
        "ecc_uncorrected_total", "uncorrected ECC errors", Aggregate.LAST, _NUMBER, is_count=True
    ): _ecc_reader(("mem_uncorrected_total", "sram_uncorrected_total")),
    ComparedQuantity(
        "ecc_corrected_total", "corrected ECC errors", Aggregate.LAST, _NUMBER, is_count=True
    ): _ecc_reader(("mem_corrected_total", "sram_corrected_total")),
}


@dataclass(slots=True)
class SubjectValues:
    """The known values of a host, job or device, collected from several snapshots."""

    quantities: Mapping[ComparedQuantity, Callable[[Any], ComparedValue]]
    values: dict[ComparedQuantity, list[float | int | str]] = field(default_factory=dict)
    command: str = ""  # command of the job's first process; "" for a host or device

    def add_state(self, state: object) -> None:
        for quantity, read in self.quantities.items():
            value = read(state)
            if value is not None:
                self.values.setdefault(quantity, []).append(value)

    def value(self, quantity: ComparedQuantity) -> ComparedValue:
        """Returns the value of a quantity combined over all snapshots; None if no snapshot has a known value."""
        values = self.values.get(quantity)
        if not values:
            return None
        numbers = [value for value in values if not isinstance(value, str)]
        if quantity.over is Aggregate.LAST or len(numbers) < len(values):
            return values[-1]
        return max(numbers) if quantity.over is Aggregate.PEAK else sum(numbers) / len(numbers)


@dataclass(slots=True)
class FindingSpan:
    """A finding, and the times of the first and the last snapshot that has it."""

    finding: Finding
    first_at_unix_seconds: float
    last_at_unix_seconds: float


class RecordingSide:
    """A recording or a part of it: values collected from snapshots of a host.

    `name` is the user's argument, such as the file of a recording. `moment_count` is its number of snapshots.
    """

    def __init__(self, name: str, *, moment_count: int = 1) -> None:
        self.name = name
        self.moment_count = moment_count
        self.taken_at_unix_seconds: list[float] = []
        self.instance = ""
        self.host = SubjectValues(HOST_QUANTITIES)
        self.jobs: dict[str, SubjectValues] = {}
        self.devices: dict[int, SubjectValues] = {}
        self._findings: dict[tuple[object, ...], FindingSpan] = {}

    @property
    def findings(self) -> tuple[FindingSpan, ...]:
        """The findings, the most severe first, then the earliest."""
        found = self._findings.values()
        return tuple(sorted(found, key=lambda span: (-span.finding.severity, span.first_at_unix_seconds)))

    def add_snapshot(self, snapshot: Snapshot, passes: ProcessTest | None = None) -> None:
        """Adds the values of a snapshot. Jobs include only processes for which `passes` returns True."""
        figures = Figures(snapshot)
        self.taken_at_unix_seconds.append(snapshot.taken_at_unix_seconds)
        instance = snapshot.instance
        self.instance = escape_controls(f"{instance.instance_id or 'a host'} ({instance.instance_type})")
        self.host.add_state(figures)
        for name, processes in _jobs_of(figures, passes).items():
            job = self.jobs.setdefault(name, SubjectValues(JOB_QUANTITIES))
            job.command = job.command or processes[0].process.command
            job.add_state(processes)
        verdicts = {verdict.device_index: verdict for verdict in health.verdicts(snapshot)}
        present = {device.index for device in snapshot.devices}
        for device in figures.snapshot.devices:
            if device.index in present:
                verdict = verdicts.get(device.index, health.Verdict(device.index, is_known=False))
                state = DeviceState(device, verdict, figures)
                self.devices.setdefault(device.index, SubjectValues(DEVICE_QUANTITIES)).add_state(state)
        at = snapshot.taken_at_unix_seconds
        for finding in snapshot.health.findings if snapshot.health is not None else ():
            span = self._findings.setdefault(finding.identity, FindingSpan(finding, at, at))
            span.finding, span.last_at_unix_seconds = finding, at


def _jobs_of(figures: Figures, passes: ProcessTest | None) -> dict[str, ComparedJob]:
    """Returns the matching processes by job name. A process outside any job counts as a job of one process."""
    found: dict[str, ComparedJob] = {}
    for job in figures.jobs:
        processes = [figures.by_pid[rank.process.pid] for rank in job.ranks]
        chosen = tuple(each for each in processes if passes is None or passes(each))
        if chosen:
            found[job.name if job.name is not None else _process_name(chosen[0].process)] = chosen
    return found


def _process_name(process: Process) -> str:
    return f"PID {process.pid}" if process.label == str(process.pid) else f"{process.label} (PID {process.pid})"


def pair_jobs(a: RecordingSide, b: RecordingSide) -> list[tuple[str | None, str | None]]:
    """Pairs the jobs of both sides by name, else by unique command.

    Names do not suffice, because PIDs and job numbers differ between runs. If exactly one job remains on each side,
    pairs these two. Returns None as the partner of an unpaired job.
    """
    pairs: list[tuple[str | None, str | None]] = [(name, name) for name in a.jobs if name in b.jobs]
    rest_a = [name for name in a.jobs if name not in b.jobs]
    rest_b = [name for name in b.jobs if name not in a.jobs]
    for name in list(rest_a):
        command = a.jobs[name].command
        same = [other for other in rest_b if b.jobs[other].command == command]
        if command and sum(a.jobs[other].command == command for other in rest_a) == 1 and len(same) == 1:
            pairs.append((name, same[0]))
            rest_a.remove(name)
            rest_b.remove(same[0])
    if len(rest_a) == len(rest_b) == 1:
        return [*pairs, (rest_a[0], rest_b[0])]
    return [*pairs, *((name, None) for name in rest_a), *((None, name) for name in rest_b)]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """The values of a quantity on side a and side b; None means unknown. `differs` ignores changes within noise."""

    quantity: ComparedQuantity
    a: ComparedValue
    b: ComparedValue
    differs: bool


@dataclass(frozen=True, slots=True)
class SubjectDifference:
    """A host, job or device that is compared. `a` and `b` are its names on side a and side b; None if missing."""

    kind: str  # "host", "job" or "device"
    a: str | None
    b: str | None
    quantities: tuple[ComparedPair, ...]

    @property
    def differs(self) -> bool:
        """Whether the host, job or device is missing on one side, or any of its quantities differs."""
        return self.a is None or self.b is None or any(each.differs for each in self.quantities)


def compare_sides(a: RecordingSide, b: RecordingSide) -> tuple[SubjectDifference, ...]:
    """Returns the differences between two sides: of the host, then of the jobs, then of the devices."""
    subjects = [_compare_subject("host", a.instance, b.instance, a.host, b.host)]
    subjects += [
        _compare_subject("job", one, other, a.jobs.get(one or ""), b.jobs.get(other or ""))
        for one, other in pair_jobs(a, b)
    ]
    for index in sorted(a.devices.keys() | b.devices.keys()):
        name = f"ND {index}"
        one, other = a.devices.get(index), b.devices.get(index)
        subjects.append(_compare_subject("device", name if one else None, name if other else None, one, other))
    return tuple(subjects)


def _compare_subject(
    kind: str, a: str | None, b: str | None, one: SubjectValues | None, other: SubjectValues | None
) -> SubjectDifference:
    there = one or other
    assert there is not None  # noqa: S101 - it is on one of the sides
    quantities = []
    for quantity in there.quantities:
        values = one.value(quantity) if one else None, other.value(quantity) if other else None
        quantities.append(ComparedPair(quantity, *values, _differs(quantity, *values)))
    return SubjectDifference(kind, a, b, tuple(quantities))


def _differs(quantity: ComparedQuantity, a: ComparedValue, b: ComparedValue) -> bool:
    if a is None or b is None or isinstance(a, str) or isinstance(b, str) or quantity.is_count:
        return a != b
    change = abs(b - a)
    if quantity.name.endswith("_ratio") and change < _NOISE_POINTS:
        return False
    return change > NOISE_RATIO * max(abs(a), abs(b))


def host_difference_text(a: RecordingSide, b: RecordingSide) -> str:
    """Returns the text output: a table of the quantities that differ, by host, job and device."""
    found = compare_sides(a, b)
    lines = [f"A: {side_text(a)}", f"B: {side_text(b)}", ""]
    lines.append(f"{'':<{_TITLE_CELLS}}{'A':>{_VALUE_CELLS}}{'B':>{_VALUE_CELLS}}  change")
    for each in found:
        if each.differs:
            lines += [_subject_heading(each), *_subject_lines(each)]
    same = [each for each in found if not each.differs]
    if len(same) == len(found):
        lines.append("no differences")
    counts = [(sum(each.kind == kind for each in same), kind) for kind in ("job", "device")]
    shown_text = " and ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counts if count)
    lines += ["", f"{f'{shown_text} unchanged; ' if shown_text else ''}left out: differences below 5 %"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def side_text(side: RecordingSide, about: str = "mean or peak") -> str:
    """Returns one line: name, host, times, and what `about` is taken from how many snapshots."""
    times = side.taken_at_unix_seconds
    first, last = (date_text(each) for each in (times[0], times[-1]))
    if len(times) == 1:
        return f"{escape_controls(side.name)}, {side.instance}, {first}"
    of_total = f"{len(times)} of " if len(times) < side.moment_count else ""
    moments = f"{of_total}{side.moment_count} snapshots"
    return f"{escape_controls(side.name)}, {side.instance}, {first} to {last}, {about} of {moments}"


def _subject_heading(each: SubjectDifference) -> str:
    names = [excerpt(name, _MOST_NAME_CELLS) for name in (each.a, each.b) if name is not None]
    name = names[0] if len(set(names)) == 1 else f"{names[0]}, in B {names[1]}"
    alone = "" if each.a is not None and each.b is not None else f" (only in {'A' if each.b is None else 'B'})"
    return f"{name}{alone}"


def _subject_lines(each: SubjectDifference) -> Iterator[str]:
    is_alone = each.a is None or each.b is None
    for row in each.quantities:
        if not (row.differs or (is_alone and (row.a, row.b) != (None, None))):
            continue
        cells = [row.quantity.text(value) for value in (row.a, row.b)]
        if is_alone:
            cells = ["" if name is None else cell for name, cell in zip((each.a, each.b), cells, strict=True)]
        padded = "".join(" " * max(1, _VALUE_CELLS - cell_width(cell)) + cell for cell in cells)
        yield f"  {row.quantity.title:<{_TITLE_CELLS - 2}}{padded}  {'' if is_alone else _change_text(row)}"


def _change_text(row: ComparedPair) -> str:
    a, b = row.a, row.b
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return ""
    if row.quantity.name.endswith("_ratio"):
        return f"{(b - a) * 100:+.1f} points"
    if not a:
        return ""
    ratio = b / a
    return f"{(ratio - 1) * 100:+.1f} %" if 0.1 < ratio < 10 else f"{ratio:.2g} times"


def host_difference_json(a: RecordingSide, b: RecordingSide) -> str:
    """Returns all compared quantities as JSON, including those that do not differ."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "a": side_part(a),
        "b": side_part(b),
        "compared": [
            {
                "kind": each.kind,
                "a": each.a,
                "b": each.b,
                "differs": each.differs,
                "quantities": [
                    {"name": row.quantity.name, "a": row.a, "b": row.b, "differs": row.differs}
                    for row in each.quantities
                ],
            }
            for each in compare_sides(a, b)
        ],
    }
    return json_text(document, indent=2) + "\n"


def side_part(side: RecordingSide) -> dict[str, object]:
    """Returns the name, host and times of a side for a JSON document."""
    return {
        "name": side.name,
        "instance": side.instance,
        "first_at": rfc3339_text(side.taken_at_unix_seconds[0]),
        "last_at": rfc3339_text(side.taken_at_unix_seconds[-1]),
        "moments_read": len(side.taken_at_unix_seconds),
        "moments": side.moment_count,
    }
