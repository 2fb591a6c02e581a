"""The time of training steps: its parts, percentiles, slow steps, and a timeline of the latest steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, starmap
from operator import sub

from neurontools.profile import ColumnTable, Engine, Profile, SpanKind, TrainingStep

NS_PER_SECOND = 1e9
_MOST_BEHIND = 1000  # largest distance in steps between ranks that a timeline can show
_PART_COLUMNS = ("compile_ns", "input_wait_ns", "transfer_ns", "compute_ns", "collective_ns")


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """An interval of time and its parts, in seconds. The parts add up to the total unless some overlap.

    `host_seconds` is the time in no other part: Python, tracing of the script and everything else.
    """

    total_seconds: float
    host_seconds: float
    compile_seconds: float
    input_wait_seconds: float
    transfer_seconds: float
    compute_seconds: float  # seconds of executions of graphs
    collective_seconds: float  # seconds of waiting for other ranks; without steps, of collectives

    @property
    def busy_seconds(self) -> float:
        """The time that the NeuronCore was in use, including the wait for its peers."""
        return self.compute_seconds + self.collective_seconds

    @property
    def idle_seconds(self) -> float:
        """The time that the NeuronCore was not in use."""
        return max(0.0, self.total_seconds - self.busy_seconds)

    @property
    def busy_ratio(self) -> float | None:
        """The share of the time that the NeuronCore was in use; None if the total is 0."""
        return min(1.0, self.busy_seconds / self.total_seconds) if self.total_seconds > 0 else None

    def ratio(self, seconds: float) -> float | None:
        """Returns a part's share of the total; None if the total is 0."""
        return seconds / self.total_seconds if self.total_seconds > 0 else None

    def parts(self) -> tuple[tuple[str, float], ...]:
        """Returns the parts with their display names, in the order of a step."""
        return tuple((name, getattr(self, field)) for name, field in _PART_FIELDS.items())


_PART_FIELDS = {
    "input wait": "input_wait_seconds",
    "host tracing": "host_seconds",
    "compile": "compile_seconds",
    "transfer": "transfer_seconds",
    "execute": "compute_seconds",
    "collectives": "collective_seconds",
}
PART_NAMES = tuple(_PART_FIELDS)


def add_splits(splits: Iterable[TimeSplit]) -> TimeSplit:
    listed = list(splits)
    return TimeSplit(*(sum(getattr(each, field.name) for each in listed) for field in fields(TimeSplit)))


@dataclass(frozen=True, slots=True)
class SlowStep:
    step: int
    seconds: float
    split: TimeSplit


@dataclass(frozen=True, slots=True)
class StepPercentiles:
    """The durations of steps; percentiles by the nearest-rank method."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p99_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Neighbouring steps that a chart draws as one, with their mean."""

    first_step: int
    last_step: int
    mean: TimeSplit


def split_of(steps: ColumnTable[TrainingStep]) -> TimeSplit:
    """Returns the sums, over the given steps, of the total time and of each part."""
    total = sum(steps.column("end_ns")) - sum(steps.column("start_ns"))
    parts = [sum(steps.column(name)) for name in _PART_COLUMNS]
    return _make_split(total, parts)


def steady_steps(profile: Profile) -> ColumnTable[TrainingStep]:
    """Returns all steps but the first of the run, which includes the start-up.

    Returns the first step if it is the only one.
    """
    steps = profile.steps
    return steps[1:] if len(steps) > 1 and steps.column("step")[0] <= 1 else steps


def first_step(profile: Profile) -> SlowStep | None:
    """Returns the first step of the run if `steady_steps` omits it, otherwise None."""
    steps = profile.steps
    if len(steady_steps(profile)) == len(steps):
        return None
    return SlowStep(steps[0].step, steps[0].duration_ns / NS_PER_SECOND, split_of(steps[:1]))


def split_of_profile(profile: Profile) -> TimeSplit:
    """Splits the time of the steady steps, or the whole time of a profile without steps."""
    if len(profile.steps):
        return split_of(steady_steps(profile))
    totals = dict.fromkeys(SpanKind, 0)
    for row in profile.span_totals:
        totals[SpanKind(row.kind)] += row.total_ns
    collectives = sum(
        row.total_ns for row in profile.operator_totals if profile.operators[row.operator].engine is Engine.COLLECTIVES
    )
    executed = sum(profile.graph_totals.column("total_ns"))
    total = max(0, profile.state.ended_ns - profile.metadata.began_ns)
    parts = [
        totals[SpanKind.COMPILE],
        totals[SpanKind.INPUT_WAIT],
        totals[SpanKind.TO_DEVICE] + totals[SpanKind.FROM_DEVICE],
        executed - collectives,
        collectives + totals[SpanKind.COLLECTIVE],
    ]
    return _make_split(total, parts)


def step_times(steps: ColumnTable[TrainingStep]) -> StepPercentiles | None:
    durations = sorted(_durations(steps))
    if not durations:
        return None
    count = len(durations)
    return StepPercentiles(
        count,
        sum(durations) / count / NS_PER_SECOND,
        durations[-(-count // 2) - 1] / NS_PER_SECOND,
        durations[-(-99 * count // 100) - 1] / NS_PER_SECOND,
        durations[-1] / NS_PER_SECOND,
    )


def slowest_steps(steps: ColumnTable[TrainingStep], most: int) -> tuple[SlowStep, ...]:
    durations = _durations(steps)
    places = sorted(range(len(durations)), key=lambda place: (-durations[place], place))[:most]
    return tuple(
        SlowStep(steps[place].step, durations[place] / NS_PER_SECOND, split_of(steps[place : place + 1]))
        for place in places
    )


def group_steps(steps: ColumnTable[TrainingStep], most: int) -> tuple[StepGroup, ...]:
    """Groups neighbouring steps into at most `most` groups of equal length."""
    count = len(steps)
    length = max(1, -(-count // most))
    numbers = steps.column("step")
    found = []
    for first in range(0, count, length):
        part = steps[first : first + length]
        whole = split_of(part)
        mean = TimeSplit(*(getattr(whole, field.name) / len(part) for field in fields(TimeSplit)))
        found.append(StepGroup(numbers[first], numbers[first + len(part) - 1], mean))
    return tuple(found)


def _durations(steps: ColumnTable[TrainingStep]) -> array[int]:
    return array("q", starmap(sub, zip(steps.column("end_ns"), steps.column("start_ns"), strict=True)))


def _make_split(total_ns: int, parts: Sequence[int]) -> TimeSplit:
    compiling, waiting, transfers, computing, collectives = (part / NS_PER_SECOND for part in parts)
    host = max(0, total_ns - sum(parts)) / NS_PER_SECOND
    return TimeSplit(total_ns / NS_PER_SECOND, host, compiling, waiting, transfers, computing, collectives)


_PART_OF_KIND = {
    SpanKind.INPUT_WAIT: "input wait",
    SpanKind.COMPILE: "compile",
    SpanKind.TO_DEVICE: "transfer",
    SpanKind.FROM_DEVICE: "transfer",
    SpanKind.COLLECTIVE: "collectives",
}


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """An interval on a lane of the timeline; `part` is its kind of time, one of PART_NAMES."""

    part: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The slices of one track: the host of a rank, or one of its NeuronCores."""

    rank: int
    core: int | None  # None for the host
    pieces: tuple[TimelineSlice, ...]  # in order of time


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A time interval with its lanes, and the numbers of its first and last step."""

    start_ns: int
    end_ns: int
    first_step: int
    last_step: int
    lanes: tuple[Lane, ...]


def latest_steps_timeline(profiles: Sequence[Profile], steps: int) -> StepTimeline | None:
    """Builds the timeline of the latest steps that all ranks have.

    Returns None if there is no common step, or if the workers ran on different hosts or boots (`boot_id`), whose clocks
    differ.
    """
    if len({profile.metadata.boot_id for profile in profiles}) != 1:
        return None
    ends = [profile.steps.column("step")[-1] for profile in profiles if len(profile.steps)]
    if len(ends) < len(profiles):
        return None
    last = min(ends)
    shown = [[row for row in profile.steps[-_MOST_BEHIND:] if last - steps < row.step <= last] for profile in profiles]
    rows = [row for each in shown for row in each]
    if not all(shown):
        return None
    start, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    lanes = [lane for profile in profiles for lane in _lanes(profile, start, end)]
    return StepTimeline(start, end, min(row.step for row in rows), last, tuple(lanes))


def _lanes(profile: Profile, start_ns: int, end_ns: int) -> Iterator[Lane]:
    host_slices: list[TimelineSlice] = []
    for row in profile.spans:
        part = _PART_OF_KIND.get(SpanKind(row.kind))
        if part is not None and row.end_ns > start_ns and row.start_ns < end_ns:
            host_slices.append(TimelineSlice(part, profile.names[row.name], row.start_ns, row.end_ns))
    rank = profile.metadata.rank
    yield Lane(rank, None, tuple(sorted(host_slices, key=lambda piece: piece.start_ns)))
    core_slices: dict[int, list[TimelineSlice]] = {core: [] for core in profile.metadata.cores}
    ends = accumulate(profile.executions.column("operator_count"))
    for execution, end in zip(profile.executions, ends, strict=True):
        if execution.end_ns > start_ns and execution.start_ns < end_ns:
            times = profile.operator_ns[end - execution.operator_count : end]
            graph = profile.graphs[execution.graph]
            pieces = core_slices.setdefault(execution.core, [])
            pieces += _execution_slices(
                profile, graph.first_operator, graph.module, times, execution.start_ns, execution.end_ns
            )
    for core, pieces in core_slices.items():
        yield Lane(rank, core, tuple(pieces))


def _execution_slices(
    profile: Profile, first_operator: int, module: str, times: Sequence[int], start_ns: int, end_ns: int
) -> Iterator[TimelineSlice]:
    """Splits an execution into slices of compute and of collectives, in order of time."""
    begun = at = start_ns
    for number, duration_ns in enumerate(times, first_operator):
        operator = profile.operators[number]
        if operator.engine is Engine.COLLECTIVES:
            if at > begun:
                yield TimelineSlice("execute", module, begun, at)
            yield TimelineSlice("collectives", operator.name, at, at + duration_ns)
            begun = at + duration_ns
        at += duration_ns
    if end_ns > begun:
        yield TimelineSlice("execute", module, begun, end_ns)
