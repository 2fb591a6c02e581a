"""The work of executions, and the steady state: executions of usual training steps, without evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import steps
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.tensors.device import device

_MOST_EXECUTIONS = 8192  # most executions between two steps; an interval with more is an evaluation
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
    """An interval of one or more optimizer steps, which ends at the first step after an execution."""

    steps: int
    counts: DeviceCounts
    work: tuple[int, ...]  # id() of the ExecutionWork of each execution

    @property
    def executions_a_step(self) -> float:
        return len(self.work) / self.steps


class SteadyState:
    """Counts executions between optimizer steps, and separates usual steps from evaluations.

    Equal intervals share one counter, so thousands of steps need little memory. An execution only appends to a list;
    the counting happens at optimizer steps.
    """

    def __init__(self) -> None:
        self._recent: list[ExecutionWork] = []
        self._work_by_id: dict[int, ExecutionWork] = {}  # ExecutionWork by id(); the reference keeps the id unique
        self._work: dict[_Interval, ExecutionWork] = {}
        self._kinds: Counter[_Interval] = Counter()
        self._before: DeviceCounts | None = None
        self._steps = 0

    def executed(self, work: ExecutionWork) -> None:
        if len(self._recent) < _MOST_EXECUTIONS:
            self._recent.append(work)

    def step_done(self, counts: DeviceCounts) -> None:
        """Ends an interval at an optimizer step. `counts` has the process totals so far."""
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
        """Returns the number of usual steps, and their total counts, executions and work. None before the second step.

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
    """Registers a hook that reports each optimizer step to `steady_state`. Call once, after count_optimizer_steps."""
    register_optimizer_step_post_hook(lambda *_: steady_state.step_done(current_counts()))


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
