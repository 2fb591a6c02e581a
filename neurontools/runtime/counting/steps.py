"""Counts and times optimizer steps, batches, samples and checkpoints of this process."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.metrics import Timer, call_sites
from neurontools.runtime.profiling.ring import ring

WARM_UP_STEPS = 5  # after this many steps, a training has usually compiled all its graphs


@dataclass(slots=True)
class StepCounts:
    """Counts of steps, batches and samples in this process.

    A step is a call of an optimizer's `step`. The duration of a step is the time since the previous call.
    """

    steps_total: int = 0
    samples_total: int = 0
    batches_total: int = 0
    largest_batch: int = 0
    first_seconds: float | None = None
    last_seconds: float | None = None
    times: Timer = field(default_factory=lambda: Timer("StepTime", is_time=True))

    def record_step(self) -> None:
        """Counts a step of an optimizer and records the time since the previous step."""
        now = time.monotonic()
        if self.last_seconds is not None:
            self.times.add(now - self.last_seconds)
        else:
            self.first_seconds = now
        self.last_seconds = now
        self.steps_total += 1
        call_sites.step = self.steps_total
        if ring.is_watching:
            ring.end_step()

    def record_batch(self, samples: int) -> None:
        """Counts a batch that a data loader returned to the script, and its samples."""
        self.batches_total += 1
        self.samples_total += samples
        self.largest_batch = max(self.largest_batch, samples)


steps = StepCounts()


def count_optimizer_steps() -> None:
    """Registers a hook that counts the steps of every optimizer. Call it once."""
    register_optimizer_step_post_hook(lambda *_: steps.record_step())


@dataclass(slots=True)
class SaveCounts:
    """Number and total seconds of torch.save calls in this process, including the execution of pending graphs."""

    saves_total: int = 0
    seconds: float = 0.0


saves = SaveCounts()


def time_saves() -> None:
    """Replaces torch.save by a function that counts and times its calls. Call it once."""
    save = torch.save

    @functools.wraps(save)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        call_sites.count_call("save")
        began_seconds = time.perf_counter()
        try:
            return save(*arguments, **keywords)
        finally:
            saves.saves_total += 1
            saves.seconds += time.perf_counter() - began_seconds

    torch.save = timed
