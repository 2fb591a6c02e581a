"""Where the time of training steps went."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from operator import sub

from neurontools.profile import Engine, Kind, Profile, Step, Table

NS_PER_SECOND = 1e9
_PART_COLUMNS = ("compile_ns", "input_wait_ns", "transfer_ns", "compute_ns", "collective_ns")
_TRANSFERS = (Kind.TO_DEVICE, Kind.FROM_DEVICE)


@dataclass(frozen=True, slots=True)
class Split:
    """What a time was spent on, seconds. The parts add up to `total_seconds`, unless some ran beside each other.

    `host_seconds` is what none of the other parts took: Python, tracing of the script, everything else.
    """

    total_seconds: float
    host_seconds: float
    compile_seconds: float
    input_wait_seconds: float
    transfer_seconds: float
    compute_seconds: float  # executions without their collectives
    collective_seconds: float  # with the wait for other ranks

    @property
    def busy_seconds(self) -> float:
        """How long the NeuronCore was in use; a core that waits for its peers is in use."""
        return self.compute_seconds + self.collective_seconds

    @property
    def idle_seconds(self) -> float:
        """How long the NeuronCore had nothing to do."""
        return max(0.0, self.total_seconds - self.busy_seconds)

    @property
    def busy_ratio(self) -> float | None:
        """The share of the time that the NeuronCore was in use; None of no time."""
        return min(1.0, self.busy_seconds / self.total_seconds) if self.total_seconds > 0 else None

    def ratio(self, seconds: float) -> float | None:
        """A part as a share of the whole; None of no time."""
        return seconds / self.total_seconds if self.total_seconds > 0 else None

    def parts(self) -> tuple[tuple[str, float], ...]:
        """The parts by their names for people, in the order of a step."""
        return tuple(
            zip(
                PART_NAMES,
                (
                    self.input_wait_seconds,
                    self.host_seconds,
                    self.compile_seconds,
                    self.transfer_seconds,
                    self.compute_seconds,
                    self.collective_seconds,
                ),
                strict=True,
            )
        )


PART_NAMES = ("input wait", "host tracing", "compile", "transfer", "execute", "collectives")


def add_splits(splits: Iterable[Split]) -> Split:
    """The sum, part by part."""
    listed = list(splits)
    return Split(*(sum(getattr(each, field.name) for each in listed) for field in fields(Split)))


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One of the steps that took longest."""

    step: int
    seconds: float
    split: Split


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps took; the middle and the high one by nearest rank."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p99_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring steps, the mean of which is drawn as one; of few steps each is one by itself."""

    first_step: int
    last_step: int
    mean: Split


def split_of(steps: Table[Step]) -> Split:
    """What the time of all these steps was spent on."""
    total = sum(steps.column("end_ns")) - sum(steps.column("start_ns"))
    parts = [sum(steps.column(name)) for name in _PART_COLUMNS]
    return _split(total, parts)


def usual_steps(profile: Profile) -> Table[Step]:
    """The steps by which a run is judged: all but the first of the run, which has all that came before it.

    Where there is no other, that one.
    """
    steps = profile.steps
    return steps[1:] if len(steps) > 1 and steps.column("step")[0] <= 1 else steps


def first_step(profile: Profile) -> SlowStep | None:
    """The step that `usual_steps` leaves out; None where it leaves none out."""
    steps = profile.steps
    if len(usual_steps(profile)) == len(steps):
        return None
    return SlowStep(steps[0].step, steps[0].duration_ns / NS_PER_SECOND, split_of(steps[:1]))


def split_of_profile(profile: Profile) -> Split:
    """What the time of the usual steps was spent on; where none was counted, all the time of the profile."""
    if len(profile.steps):
        return split_of(usual_steps(profile))
    totals = dict.fromkeys(Kind, 0)
    for row in profile.span_totals:
        totals[Kind(row.kind)] += row.total_ns
    collectives = sum(
        row.total_ns for row in profile.operator_totals if profile.operators[row.operator].engine is Engine.COLLECTIVES
    )
    executed = sum(profile.graph_totals.column("total_ns"))
    total = max(0, profile.state.ended_ns - profile.metadata.began_ns)
    transfers = sum(totals[kind] for kind in _TRANSFERS)
    parts = [
        totals[Kind.COMPILE],
        totals[Kind.INPUT_WAIT],
        transfers,
        executed - collectives,
        collectives + totals[Kind.COLLECTIVE],
    ]
    return _split(total, parts)


def step_times(steps: Table[Step]) -> StepTimes | None:
    """How long they took; None where there are none."""
    durations = sorted(_durations(steps))
    if not durations:
        return None
    count = len(durations)
    return StepTimes(
        count,
        sum(durations) / count / NS_PER_SECOND,
        durations[-(-count // 2) - 1] / NS_PER_SECOND,
        durations[-(-99 * count // 100) - 1] / NS_PER_SECOND,
        durations[-1] / NS_PER_SECOND,
    )


def slowest_steps(steps: Table[Step], most: int) -> tuple[SlowStep, ...]:
    """The steps that took longest, the longest first."""
    durations = _durations(steps)
    places = sorted(range(len(durations)), key=lambda place: (-durations[place], place))[:most]
    return tuple(
        SlowStep(steps[place].step, durations[place] / NS_PER_SECOND, split_of(steps[place : place + 1]))
        for place in places
    )


def stretches(steps: Table[Step], most: int) -> tuple[Stretch, ...]:
    """All steps in their order, drawn together into at most so many stretches of one length."""
    count = len(steps)
    length = max(1, -(-count // most))
    numbers = steps.column("step")
    found = []
    for first in range(0, count, length):
        part = steps[first : first + length]
        whole = split_of(part)
        mean = Split(*(getattr(whole, field.name) / len(part) for field in fields(Split)))
        found.append(Stretch(numbers[first], numbers[first + len(part) - 1], mean))
    return tuple(found)


def _durations(steps: Table[Step]) -> array[int]:
    return array("q", starmap(sub, zip(steps.column("end_ns"), steps.column("start_ns"), strict=True)))


def _split(total_ns: int, parts: Sequence[int]) -> Split:
    compiling, waiting, transfers, computing, collectives = (part / NS_PER_SECOND for part in parts)
    host = max(0, total_ns - sum(parts)) / NS_PER_SECOND
    return Split(total_ns / NS_PER_SECOND, host, compiling, waiting, transfers, computing, collectives)
