"""Work of executions and their steady state: what a training step usually executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import steps
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.tensors.device import device

_MOST_EXECUTIONS = 8192  # between two steps: beyond it is an evaluation
_MOST_KINDS = 256
_MANY_EXECUTIONS = 1.5
_MORE_FLOPS = 1.02


class DeviceCounts(NamedTuple):
    """What is counted elsewhere, up to a moment or between two."""

    samples: int
    batches: int
    collectives: int
    collective_bytes: int

    def since(self, before: DeviceCounts) -> DeviceCounts:
        """Between two moments."""
        return DeviceCounts(*(now - then for now, then in zip(self, before, strict=True)))


class _Interval(NamedTuple):
    """From one step to the next one before which something was executed."""

    steps: int
    counts: DeviceCounts
    work: tuple[int, ...]  # of each execution, by identity

    @property
    def executions_a_step(self) -> float:
        return len(self.work) / self.steps


class SteadyState:
    """Executions between steps, of which those are usual that are no evaluation's.

    Intervals of the same executions are one kind, so that thousands of steps take the room of a few. Each execution
    costs an addition to a list here, everything else is done between steps.
    """

    def __init__(self) -> None:
        self._recent: list[ExecutionWork] = []
        self._kept: dict[int, ExecutionWork] = {}  # for as long as something goes by their identity
        self._work: dict[_Interval, ExecutionWork] = {}
        self._kinds: Counter[_Interval] = Counter()
        self._before: DeviceCounts | None = None
        self._steps = 0

    def executed(self, work: ExecutionWork) -> None:
        """A program ran; any thread."""
        if len(self._recent) < _MOST_EXECUTIONS:
            self._recent.append(work)

    def step_done(self, counts: DeviceCounts) -> None:
        """An optimizer stepped, and so much was counted by now."""
        if self._before is None:
            self._recent, self._before = [], counts
            return
        self._steps += 1
        if not self._recent:
            return
        recent, self._recent = self._recent, []
        kind = _Interval(self._steps, counts.since(self._before), tuple(map(id, recent)))
        self._before, self._steps = counts, 0
        if kind not in self._work:
            if len(recent) >= _MOST_EXECUTIONS or len(self._work) >= _MOST_KINDS:
                return
            self._kept.update((id(work), work) for work in recent)
            total = ExecutionWork()
            for work in recent:
                total.add(work, 1)
            self._work[kind] = total
        self._kinds[kind] += 1

    def total(self) -> tuple[int, DeviceCounts, int, ExecutionWork] | None:
        """How many steps were usual, what was counted in them, their executions and work; None before the second step.

        An interval is none of a usual step if it has half as many executions more for each step as the one in the
        middle has, and FLOPs more: variable shapes change FLOPs alone, a value that is read now and then executions.
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
    """The lower median of values with their weights."""
    ordered = sorted(weighted)
    half, passed = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    raise ValueError("there are no values")


steady_state = SteadyState()


def current_counts() -> DeviceCounts:
    """The counts of this moment."""
    collectives_total = collective_bytes = 0
    for core in device.taken:
        collectives_total += core.statistics.collectives_total
        collective_bytes += core.statistics.collective_bytes
    return DeviceCounts(steps.samples_total, steps.batches_total, collectives_total, collective_bytes)


def watch_steady_state() -> None:
    """Looks after every step of an optimizer, after it was counted; once a process."""

    def stepped(_optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        steady_state.step_done(current_counts())

    register_optimizer_step_post_hook(stepped)


@dataclass(slots=True)
class ExecutionWork:
    """Work of one execution of a program, or of many.

    `flops_by_dtype` has the element types in which the device multiplies, as torch names them: what --auto-cast narrows
    is counted as what it becomes. `tensors_total` are the inputs and outputs that each execution is given, and
    `moved_bytes` their sizes: the least that an execution reads and writes in HBM.
    """

    flops_by_dtype: Counter[str] = field(default_factory=Counter)
    tensors_total: int = 0
    moved_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of all element types."""
        return self.flops_by_dtype.total()

    def add(self, other: ExecutionWork, times: int) -> None:
        """Adds so many executions of another."""
        for dtype, flops in other.flops_by_dtype.items():
            self.flops_by_dtype[dtype] += flops * times
        self.tensors_total += other.tensors_total * times
        self.moved_bytes += other.moved_bytes * times


def work_of(compiled: CompiledGraph, numerics: Numerics) -> ExecutionWork:
    """The work of one execution."""
    work = ExecutionWork(tensors_total=len(compiled.inputs) + len(compiled.outputs))
    for dtype, flops in compiled.flops_by_dtype.items():
        work.flops_by_dtype[numerics.multiplied(dtype)] += flops
    work.moved_bytes = sum(compiled.layouts[number].nbytes for number in (*compiled.inputs, *compiled.outputs))
    return work
