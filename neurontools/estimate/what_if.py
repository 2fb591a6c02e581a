"""What changes would do, by the same model: only those of which it is known to have the right sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neurontools.estimate.calibration import Calibration
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.interval import Interval
from neurontools.estimate.machine import Machine
from neurontools.estimate.step_time import StepTime, step_time

_BATCHES = 10  # an execution, as the ViT article tried it
_ACCUMULATED = 4
_NOTABLE = 0.1  # of a step

NOT_PREDICTED = (
    ("autocast (AMP)", "cost 26% where it was measured, and the model has no term for it"),
    ("FP8", "as fast as BF16 at best on Trainium1 and Inferentia2; cost 8% where it was measured"),
    ("compiler flags, SDK release", "one script moved between -22% and +21% from release to release"),
    ("input pipeline", "loading is measured on this CPU and not on the instance's"),
    ("more than one instance", "nothing that suits is published"),
)
"""What the model can't tell, and why."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change. `speedup` is samples a second over those of today, or None where only memory changes."""

    change: str
    speedup: Interval | None
    peak_bytes: int | None  # None where it isn't known
    why: str


def what_ifs(run: CountedRun, machine: Machine, calibration: Calibration | None) -> list[WhatIf]:
    """All that apply to this run on this machine."""
    today = _Today(run, machine, calibration, step_time(run, machine, calibration))
    return [found for change in _CHANGES if (found := change(today)) is not None]


@dataclass(frozen=True, slots=True)
class _Today:
    """A run as it is."""

    run: CountedRun
    machine: Machine
    calibration: Calibration | None
    step: StepTime

    def speedup(self, changed: CountedRun, work: float = 1.0) -> Interval:
        """Samples a second of a changed run, which takes `work` times the samples, over those of today.

        What is unknown is the same in both, so scenario is held against scenario.
        """
        after = step_time(changed, self.machine, self.calibration)
        ratios = [work * before / now for before, now in zip(self.step.scenarios, after.scenarios, strict=True)]
        return Interval(min(ratios), max(ratios))


def _bf16(today: _Today) -> WhatIf | None:
    run = today.run
    wide = run.flops_by_dtype.get("float32", 0.0)
    if wide <= run.flops / 2:
        return None
    flops = {dtype: count for dtype, count in run.flops_by_dtype.items() if dtype != "float32"}
    flops["bfloat16"] = flops.get("bfloat16", 0.0) + wide
    peaks = today.machine.peak_flops
    ratio = peaks["bfloat16"] / peaks["float32"]
    return WhatIf(
        "bfloat16 (model.to(torch.bfloat16))",
        today.speedup(replace(run, flops_by_dtype=flops, moved_bytes=run.moved_bytes / 2)),
        run.peak_bytes // 2,
        f"{wide / run.flops:.0%} of the FLOPs are float32, whose peak is {ratio:.1f} times lower",
    )


def _batches_per_execution(today: _Today) -> WhatIf | None:
    run = today.run
    if run.batches_per_execution is None or not 0.5 <= run.batches_per_execution <= 2:
        return None
    return WhatIf(
        f"batches_per_execution={_BATCHES}",
        today.speedup(replace(run, executions=run.executions / _BATCHES, tensors=run.tensors / _BATCHES)),
        None,
        f"{run.executions:.2g} execution(s) a step, each launched with {run.tensors / run.executions:.0f} tensors",
    )


def _all_cores(today: _Today) -> WhatIf | None:
    run, cores = today.run, today.machine.core_count
    if run.worker_count >= cores:
        return None
    reduced = run.collective_bytes or run.gradient_bytes or 0
    changed = replace(run, worker_count=cores, collectives=max(run.collectives, 1.0), collective_bytes=reduced)
    return WhatIf(
        f"a worker a core ({cores})",
        today.speedup(changed, cores / run.worker_count),
        run.peak_bytes,
        f"{run.worker_count} of {cores} cores are used and all are paid; gradients are reduced once a step",
    )


def _accumulation(today: _Today) -> WhatIf | None:
    run, step = today.run, today.step
    if not run.collectives or step.collectives.high < _NOTABLE * step.total.low:
        return None
    less = replace(
        run, collectives=run.collectives / _ACCUMULATED, collective_bytes=run.collective_bytes / _ACCUMULATED
    )
    return WhatIf(
        f"gradients of {_ACCUMULATED} batches accumulated",
        today.speedup(less),
        run.peak_bytes,
        f"gradients are reduced in {run.collectives:.3g} collectives a step; it changes what the optimizer sees",
    )


def _checkpointing(today: _Today) -> WhatIf | None:
    run = today.run
    if run.peak_bytes < today.machine.core_memory_bytes / 2:
        return None
    again = {dtype: flops * 4 / 3 for dtype, flops in run.flops_by_dtype.items()}
    return WhatIf(
        "activation checkpointing",
        today.speedup(replace(run, flops_by_dtype=again)),
        None,
        "the forward pass is computed twice; how much memory it saves depends on where it is used",
    )


def _batch(today: _Today) -> WhatIf | None:
    """Only where the sign is known: with a host that waits for the device a batch is as long as its samples."""
    if today.calibration is None or today.step.host.high >= today.step.compute.low or today.run.samples is None:
        return None
    return WhatIf("a larger batch", Interval(1.0, 1.0), None, "compute binds, so a sample takes as long: no effect")


_CHANGES: tuple[Callable[[_Today], WhatIf | None], ...] = (
    _bf16,
    _batches_per_execution,
    _all_cores,
    _accumulation,
    _checkpointing,
    _batch,
)
