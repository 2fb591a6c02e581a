"""What a training runtime tells beside executions: steps, compilations, transfers, where time goes, and advice."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Counters in the count of one process. None where the runtime has not seen such a thing, as samples where
    the script does not use the loader, or where nobody tells, as collectives of a script that reports by itself."""

    steps_total: int = 0  # calls of an optimizer's step
    samples_total: int | None = None  # along the first dimension of the batches of MpDeviceLoader
    compilations_total: int | None = None  # graphs compiled; those found in the cache are not
    compile_seconds_total: float | None = None
    collectives_total: int | None = None
    collective_seconds_total: float | None = None  # part of the busy time: a core that waits for its peers is in use
    collective_bytes_total: int | None = None  # that this process put in
    to_device_bytes_total: int | None = None
    from_device_bytes_total: int | None = None
    input_wait_seconds_total: float | None = None  # that the script waited for its loader's batches
    checkpoints_total: int | None = None  # written
    checkpoint_seconds_total: float | None = None  # that the script took to write them
    host_seconds_total: float | None = None
    """With input wait and the four below the parts of step time: together the time since the process began to count,
    each moment in one of them. The host's is that in none of the others: tracing, Python, whatever the script does."""

    compile_wait_seconds_total: float | None = None  # for a program: made, by another worker too, or read, and loaded
    transfer_seconds_total: float | None = None  # copying between host and device, while the script waits for it
    compute_seconds_total: float | None = None  # executing, what collectives move and reduce included
    collective_wait_seconds_total: float | None = None  # part of collective_seconds_total: until the others came too
    compiling_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it waits for no program now, or nobody tells
    last_step_at_seconds: float | None = None  # CLOCK_MONOTONIC of the end of the latest step; None: none yet
    collective_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it is in no collective, or nobody tells
    latest_collective: str | None = None  # "all_reduce": the one it is in, else its last; None: none yet
    checkpointing_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it writes none now, or nobody tells

    def compiling_for_seconds(self, now_seconds: float) -> float | None:
        """How long it waits for a program at `now_seconds` of CLOCK_MONOTONIC; None: for none, or nobody tells."""
        return age_seconds(self.compiling_since_seconds, now_seconds)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """How long ago its latest step ended; None: there is none, or nobody tells."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def age_seconds(at_seconds: float | None, now_seconds: float) -> float | None:
    """How long ago a moment of CLOCK_MONOTONIC was; None for an unknown one."""
    return None if at_seconds is None else max(0.0, now_seconds - at_seconds)


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The same over the last period; None is unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # of the time
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    input_wait_ratio: float | None = None  # of the time, as those below
    host_ratio: float | None = None
    compile_wait_ratio: float | None = None
    transfer_ratio: float | None = None
    compute_ratio: float | None = None
    collective_wait_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of step time: its name, and the fields of TrainingCounters and TrainingRates that have it."""

    name: str
    counter: str
    ratio: str


STEP_PARTS = (
    StepPart("compute", "compute_seconds_total", "compute_ratio"),
    StepPart("collective wait", "collective_wait_seconds_total", "collective_wait_ratio"),
    StepPart("host", "host_seconds_total", "host_ratio"),
    StepPart("input wait", "input_wait_seconds_total", "input_wait_ratio"),
    StepPart("transfer", "transfer_seconds_total", "transfer_ratio"),
    StepPart("compile", "compile_wait_seconds_total", "compile_wait_ratio"),
)
WAIT_PART = 1  # where among them the waiting for other ranks is


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """What the latest steps of a rank took, in two spans of some steps each."""

    steps: int
    part_seconds: tuple[float, ...]  # a step, in the order of STEP_PARTS; what it does not tell is in host
    least_wait_seconds: float  # a step in collective wait, in the span where they were fewer
    most_wait_seconds: float  # in the other span

    @property
    def step_seconds(self) -> float:
        """How long a step took."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The operators of one kind that a process has executed."""

    name: str  # "aten::mm"; "" for all that are not listed, or not told apart yet
    seconds_total: float  # in the count of the process, by samples of its executions
    executions_total: int
    ratio: float | None = None  # of the last seconds

    __repr__ = showing("name", "seconds_total")


@dataclass(frozen=True, slots=True)
class ScriptAdvice:
    """One thing that a training script could do better, as its runtime judges it; texts come from the process."""

    rule: str  # "host-read"
    measured: str
    place: str | None  # "train.py:12"
    fix: str
    effect: str

    __repr__ = showing("rule", "place")
