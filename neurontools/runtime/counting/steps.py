"""Optimizer steps, batches, samples and checkpoints of this process, and their durations."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.metrics import Timer, call_sites
from neurontools.runtime.profiling.ring import ring

WARM_UP_STEPS = 5  # by then a training has met the graphs that it goes on with


@dataclass(slots=True)
class StepCounts:
    """Counts of one process. A step is a call of an optimizer's `step`; its time is that since the one before."""

    steps_total: int = 0
    samples_total: int = 0
    batches_total: int = 0
    largest_batch: int = 0
    first_seconds: float | None = None
    last_seconds: float | None = None
    times: Timer = field(default_factory=lambda: Timer("StepTime", is_time=True))

    def step_done(self) -> None:
        """An optimizer stepped."""
        now = time.monotonic()
        if self.last_seconds is not None:
            self.times.add(now - self.last_seconds)
        else:
            self.first_seconds = now
        self.last_seconds = now
        self.steps_total += 1
        call_sites.step = self.steps_total
        if ring.is_watching:
            ring.step_done()

    def batch_loaded(self, samples: int) -> None:
        """A loader gave a batch of so many samples to the script."""
        self.batches_total += 1
        self.samples_total += samples
        self.largest_batch = max(self.largest_batch, samples)


steps = StepCounts()


def count_optimizer_steps() -> None:
    """Counts the steps of every optimizer; once a process."""

    def stepped(_optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        steps.step_done()

    register_optimizer_step_post_hook(stepped)


@dataclass(slots=True)
class SaveCounts:
    """Counts of one process."""

    saves_total: int = 0
    seconds: float = 0.0


saves = SaveCounts()


def time_saves() -> None:
    """Counts and times every call of torch.save; once a process."""
    save = torch.save

    @functools.wraps(save)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        call_sites.note("save")
        began_seconds = time.perf_counter()
        try:
            return save(*arguments, **keywords)
        finally:
            saves.saves_total += 1
            saves.seconds += time.perf_counter() - began_seconds

    torch.save = timed
