"""The work of executions, the steady state (usual training steps, without evaluations), and operator times.

Few executions of a program are timed instruction by instruction; every other execution costs one comparison. The timed
executions give the share of each operator, and all executions give the total time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import sub
from threading import Lock
from typing import NamedTuple, Protocol

from neurontools.model import OperatorTime
from neurontools.rpc.report_limits import MOST_OPERATORS
from neurontools.runtime.counting.steps import step_hooks, steps
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.tensors.device import device

_MOST_EXECUTIONS = 8192  # most executions between two training steps; more are those of an evaluation
_MOST_KINDS = 256
_MANY_EXECUTIONS = 1.5
_MORE_FLOPS = 1.02


class DeviceCounts(NamedTuple):
    """Samples, batches and collectives of this process: totals so far, or the increase between two moments."""

    samples: int
    batches: int
    collectives: int
    collective_bytes: int


class _Interval(NamedTuple):
    """One or more training steps up to a step that was preceded by an execution, and the work of these steps."""

    steps: int
    counts: DeviceCounts
    work: tuple[int, ...]  # id() of the ExecutionWork of each execution

    @property
    def executions_a_step(self) -> float:
        return len(self.work) / self.steps


class SteadyState:
    """Counts executions between training steps, and separates steady-state steps from evaluations.

    Equal intervals share one counter, so thousands of steps need little memory. An execution only appends to a list;
    the counting happens at training steps.
    """

    def __init__(self) -> None:
        self._recent: list[ExecutionWork] = []
        self._work_by_id: dict[int, ExecutionWork] = {}  # maps id() to the object, and keeps it alive
        self._work: dict[_Interval, ExecutionWork] = {}
        self._kinds: Counter[_Interval] = Counter()
        self._before: DeviceCounts | None = None
        self._steps = 0

    def executed(self, work: ExecutionWork) -> None:
        if len(self._recent) < _MOST_EXECUTIONS:
            self._recent.append(work)

    def step_done(self, counts: DeviceCounts) -> None:
        """Ends an interval at a training step. `counts` has the process totals so far."""
        if self._before is None:
            self._recent, self._before = [], counts
            return
        self._steps += 1
        if not self._recent:
            return
        recent, self._recent = self._recent, []
        increase = DeviceCounts(*map(sub, counts, self._before))
        kind = _Interval(self._steps, increase, tuple(map(id, recent)))
        self._before, self._steps = counts, 0
        if kind not in self._work:
            if len(recent) >= _MOST_EXECUTIONS or len(self._work) >= _MOST_KINDS:
                return
            self._work_by_id.update((id(work), work) for work in recent)
            total = ExecutionWork()
            for work in recent:
                total.add(work, 1)
            self._work[kind] = total
        self._kinds[kind] += 1

    def total(self) -> tuple[int, DeviceCounts, int, ExecutionWork] | None:
        """Returns the number of steady-state steps, and their counts, executions and work. None before the second step.

        Leaves out an interval if its executions per step exceed the median by over half and its FLOPs per step exceed
        the median by over 2%. More FLOPs alone may come from variable shapes; more executions alone may come from
        occasional reads of a value.
        """
        kinds = self._kinds.copy()
        if not kinds:
            return None
        executions = _weighted_median((kind.executions_a_step, kind.steps * n) for kind, n in kinds.items())
        flops = _weighted_median((self._work[kind].flops / kind.steps, kind.steps * n) for kind, n in kinds.items())
        steps = executions_total = 0
        counts, work = [0] * len(DeviceCounts._fields), ExecutionWork()
        for kind, number in kinds.items():
            is_more = self._work[kind].flops > _MORE_FLOPS * flops * kind.steps
            if is_more and kind.executions_a_step > _MANY_EXECUTIONS * executions:
                continue
            steps += number * kind.steps
            executions_total += number * len(kind.work)
            counts = [total + number * each for total, each in zip(counts, kind.counts, strict=True)]
            work.add(self._work[kind], number)
        return steps, DeviceCounts(*counts), executions_total, work


def _weighted_median(weighted: Iterable[tuple[float, int]]) -> float:
    """Returns the lower weighted median of (value, weight) pairs. Raises ValueError if there are none."""
    ordered = sorted(weighted)
    half, passed = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    raise ValueError("there are no values")


steady_state = SteadyState()


def current_counts() -> DeviceCounts:
    """Returns this process's totals of samples, batches and collectives so far, over all its cores."""
    collectives_total = collective_bytes = 0
    for core in device.acquired_cores:
        collectives_total += core.statistics.collectives_total
        collective_bytes += core.statistics.collective_bytes
    return DeviceCounts(steps.samples_total, steps.batches_total, collectives_total, collective_bytes)


def watch_steady_state() -> None:
    """Registers a hook that reports each training step to `steady_state`. Call once."""
    step_hooks.append(lambda: steady_state.step_done(current_counts()))


@dataclass(slots=True)
class ExecutionWork:
    """Work of one or more executions.

    The keys of `flops_by_dtype` are torch's names of the dtypes in which the device multiplies, after --auto-cast.
    `tensors_total` counts inputs and outputs. `moved_bytes` is their size: the least possible HBM traffic.
    """

    flops_by_dtype: Counter[str] = field(default_factory=Counter)
    tensors_total: int = 0
    moved_bytes: int = 0

    @property
    def flops(self) -> int:
        return self.flops_by_dtype.total()

    def add(self, other: ExecutionWork, times: int) -> None:
        """Adds the work of `other`, multiplied by `times`."""
        for dtype, flops in other.flops_by_dtype.items():
            self.flops_by_dtype[dtype] += flops * times
        self.tensors_total += other.tensors_total * times
        self.moved_bytes += other.moved_bytes * times


def work_of(compiled: CompiledGraph, numerics: Numerics) -> ExecutionWork:
    tensors = (*compiled.inputs, *compiled.outputs)
    work = ExecutionWork(Counter(), len(tensors), sum(compiled.layouts[number].nbytes for number in tensors))
    for dtype, flops in compiled.flops_by_dtype.items():
        work.flops_by_dtype[numerics.multiplied(dtype)] += flops
    return work


_FIRST_SAMPLE = 16  # number of executions that are not timed, because early executions are slower
_SAMPLE_EVERY = 61  # one of 61 executions is timed; a prime, so that each execution of a loop gets its turn
_PREPARATION_SECONDS = 100e-6  # estimated seconds per instruction to prepare a timed execution
_PREPARATION_RATIO = 0.004  # largest share of a program's execution time so far that the preparation may take


class OperatorSamples:
    """The timed executions of one program, and which execution to time next. Callers hold the runtime's lock.

    `names` has each operator of the program once. `seconds` is the total time of all executions, whether
    their operators were timed or not.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.kind_of = tuple(numbers[name] for name in names)
        self.counts = tuple(names.count(name) for name in self.names)
        self.nanoseconds = [0] * len(self.names)
        self.next_at = _FIRST_SAMPLE
        self.seconds = 0.0
        self.counted_seconds = 0.0
        self.counted_executions = 0

    def is_due(self) -> bool:
        """Returns whether to time the operators of this execution, and advances `next_at`, the next execution to time.

        Returns False while the preparation would take too large a share of the program's time so far.
        """
        self.next_at += _SAMPLE_EVERY
        return len(self.kind_of) * _PREPARATION_SECONDS <= _PREPARATION_RATIO * self.seconds

    def add_times(self, times_ns: tuple[int, ...]) -> None:
        """Adds a timed execution. `times_ns` has the clock before the first instruction and after each instruction."""
        nanoseconds, before = self.nanoseconds, times_ns[0]
        for number, after in zip(self.kind_of, times_ns[1:], strict=True):
            nanoseconds[number] += after - before
            before = after


class SampledProgram(Protocol):
    """The attributes of a loaded program that OperatorTimes reads."""

    executions: int
    samples: OperatorSamples


class OperatorTimes:
    """Sums the operator times of all programs of the process. The sums only grow; any thread may read them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds: dict[str, float] = {}
        self._executions: dict[str, int] = {}

    def count_executions(self, program: SampledProgram) -> None:
        """Adds a program's executions since the last call, by operator; under the name "" until one was timed."""
        samples = program.samples
        with self._lock:
            seconds, times = samples.seconds, program.executions
            new_seconds, executed = seconds - samples.counted_seconds, times - samples.counted_executions
            samples.counted_seconds, samples.counted_executions = seconds, times
            nanoseconds = samples.nanoseconds.copy()
            whole = sum(nanoseconds)
            if not whole:
                self._add("", new_seconds, executed * len(samples.kind_of))
                return
            for name, own, count in zip(samples.names, nanoseconds, samples.counts, strict=True):
                self._add(name, new_seconds * own / whole, executed * count)

    def _add(self, name: str, seconds: float, executions: int) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._executions[name] = self._executions.get(name, 0) + executions

    def totals_by_operator(self, programs: Iterable[SampledProgram]) -> tuple[OperatorTime, ...]:
        """Returns the operators with the largest total times, at most MOST_OPERATORS rows.

        The last row has an empty name and sums all remaining operators, if any.
        """
        for program in programs:
            self.count_executions(program)
        with self._lock:
            names = sorted((name for name in self._seconds if name), key=lambda name: -self._seconds[name])
            listed = names[: MOST_OPERATORS - 1]
            rest = [name for name in self._seconds if name not in listed]
            found = [OperatorTime(name, self._seconds[name], self._executions[name]) for name in listed]
            if rest:
                seconds = sum(self._seconds[name] for name in rest)
                found.append(OperatorTime("", seconds, sum(self._executions[name] for name in rest)))
            return tuple(found)
