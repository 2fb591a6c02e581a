"""Training steps, batches and checkpoints of this process, and the step clock.

The step clock divides training time into parts such as compile wait and computing. The rest is host time.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock, get_ident
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.driver.processes import read_run_delay_seconds
from neurontools.runtime.counting.metrics import Timer, call_sites
from neurontools.runtime.profiling.ring import TRACED_STEPS, ring

COMPILE, INPUT, TRANSFER, COMPUTE, COLLECTIVE = range(5)
"""Wait for a compiled program, wait for the loader, copies between host and device, execution, wait for other ranks."""

Entry = tuple[int, float, float]
"""An open part: (number of the part, its start by perf_counter, `charged_seconds` at its start)"""

_MONOTONIC_SECONDS = time.monotonic() - time.perf_counter()  # about 0 on Linux: both are CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class StepTimeParts:
    """Seconds of training time by part. The parts add up to the time since the step clock started.

    `input_wait_seconds` is None for a script without a torch data loader. `compiling_since_seconds` is the time of
    CLOCK_MONOTONIC at which the current wait for a program began, or None while the script does not wait for a program.
    `collective_since_seconds` is the time at which the current collective began, or None outside of collectives.
    """

    host_seconds: float
    compile_wait_seconds: float
    input_wait_seconds: float | None
    transfer_seconds: float
    compute_seconds: float
    collective_wait_seconds: float
    compiling_since_seconds: float | None
    collective_since_seconds: float | None


class StepClock:
    """Charges training time to parts. Parts may nest: an outer part gets only the time not charged to inner parts.

    `background` has the ids of threads that work while the script continues. Their time must not be charged, so callers
    test `is_background`. If parts of two threads overlap, the part that ends first gets the common time. All times that
    callers pass must come from `clock`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.charged_seconds = 0.0
        self.background: set[int] = set()
        self.latest_collective: str | None = None  # kind of the latest collective, set by the code that runs it
        self._seconds = [0.0] * 5
        self._open: dict[int, Entry] = {}
        self._clock = clock
        self._began_seconds = clock()
        self._read_seconds = [0.0] * 6  # seconds by part (host time last) that read_times returned last
        self._lock = Lock()  # read_times holds this lock; charging takes no lock

    def begin(self) -> None:
        """Starts host time now: discards the host time that `read_times` has not returned yet."""
        self._began_seconds = self._clock() - max(self.charged_seconds, sum(self._read_seconds))

    def open(self, part: int, at_seconds: float) -> Entry:
        """Opens a part that may take long. `read_times` counts the part while it is open."""
        entry = (part, at_seconds, self.charged_seconds)
        self._open[id(entry)] = entry
        return entry

    def is_open(self, part: int) -> bool:
        return any(entry[0] == part for entry in tuple(self._open.values()))

    def close(self, entry: Entry, at_seconds: float) -> float:
        """Closes a part. Returns the seconds that were charged to it."""
        part, began_seconds, charged_before = entry
        charged = self.charge(part, at_seconds - began_seconds, charged_before)
        del self._open[id(entry)]
        return charged

    def close_collective(self, entry: Entry, at_seconds: float, wait_seconds: float) -> None:
        """Closes a collective. Charges `wait_seconds` as waiting for other ranks and the rest as computing."""
        _, began_seconds, charged_before = entry
        self.charge(COLLECTIVE, min(wait_seconds, at_seconds - began_seconds), charged_before)
        self.charge(COMPUTE, at_seconds - began_seconds, charged_before)
        del self._open[id(entry)]

    def charge(self, part: int, seconds: float, charged_before: float) -> float:
        """Charges `seconds` to a part, less the time that was charged to inner parts meanwhile. Returns the charge.

        `charged_before` is the value that `charged_seconds` had at the start of the part.
        """
        rest = seconds - (self.charged_seconds - charged_before)
        if rest <= 0.0:
            return 0.0
        self._seconds[part] += rest
        self.charged_seconds += rest
        return rest

    def is_background(self) -> bool:
        return bool(self.background) and get_ident() in self.background

    def read_times(self) -> StepTimeParts:
        """Returns the seconds of all parts up to now, including open parts. No part decreases between two calls.

        Until a collective ends, nobody knows how much of its time is waiting. So a call may return too much time for a
        part. Later calls then return the same value until the charges catch up.
        """
        with self._lock:
            now = self._clock()
            seconds, since = self._times_at(now)
            read = self._read_seconds = _limit_growth(self._read_seconds, seconds, now - self._began_seconds)
        return StepTimeParts(
            host_seconds=read[5],
            compile_wait_seconds=read[COMPILE],
            input_wait_seconds=read[INPUT] or None,
            transfer_seconds=read[TRANSFER],
            compute_seconds=read[COMPUTE],
            collective_wait_seconds=read[COLLECTIVE],
            compiling_since_seconds=since.get(COMPILE),
            collective_since_seconds=since.get(COLLECTIVE),
        )

    def read_charges(self) -> tuple[float, tuple[float, ...]]:
        """Returns the current perf_counter time and the seconds of each part up to now, without host time.

        Callers subtract the values of two step boundaries, where hardly any part is open. The seconds of an open part
        may be lower in a later call.
        """
        now = self._clock()
        return now, tuple(self._times_at(now)[0][:-1])

    def _times_at(self, now: float) -> tuple[list[float], dict[int, float]]:
        """Returns the seconds by part, host time last, and the CLOCK_MONOTONIC start of each open part."""
        # Copies `_open` first. A part that closes before the second copy is then in both copies, and is counted once.
        lasting = self._open.copy()
        seconds = self._seconds.copy()
        charged = sum(seconds)
        since: dict[int, float] = {}
        for part, began_seconds, charged_before in sorted(lasting.values(), key=itemgetter(1), reverse=True):
            rest = now - began_seconds - (charged - charged_before)
            if rest > 0.0:
                seconds[part] += rest
                charged += rest
            since[part] = began_seconds + _MONOTONIC_SECONDS  # of several open entries of a part, the earliest stays
        return [*seconds, now - self._began_seconds - charged], since

    def renew_lock(self) -> None:
        """Replaces the lock in a forked child, because the thread that held it does not exist there."""
        self._lock = Lock()


def _limit_growth(before: list[float], now: list[float], whole_seconds: float) -> list[float]:
    """Returns `before` with each part raised towards its value in `now`. The sum grows to `whole_seconds` at most."""
    passed_seconds = max(0.0, whole_seconds - sum(before))
    missing = [max(0.0, part - earlier) for earlier, part in zip(before, now, strict=True)]
    share = min(1.0, passed_seconds / (sum(missing) or 1.0))
    return [earlier + share * more for earlier, more in zip(before, missing, strict=True)]


step_clock = StepClock()
os.register_at_fork(after_in_child=step_clock.renew_lock)


_IMPORT_RUN_DELAY_SECONDS = read_run_delay_seconds() or 0.0


class StepBoundaries:
    """Decides which calls of an optimizer's `step` begin a new training step.

    A training step is one iteration of the training loop. All optimizers of the loop step once in it: those of a GAN,
    one for each group of parameters, or one that another one wraps. So a call begins a new step if the same optimizer
    has already stepped in the current one. If a script trains independent models in turn, each change of the
    model joins two steps.
    """

    def __init__(self) -> None:
        self._stepped: WeakSet[Any] = WeakSet()

    def begins_step(self, optimizer: Any) -> bool:
        """Returns whether this call of an optimizer's `step` begins a training step. Call it once for each call."""
        is_new = not self._stepped or optimizer in self._stepped
        if is_new:
            self._stepped = WeakSet()
        self._stepped.add(optimizer)
        return is_new


@dataclass(slots=True)
class StepCounts:
    """Counts of training steps, batches and samples in this process.

    `StepBoundaries` defines a step. The duration of a step is the time since the previous one.
    """

    steps_total: int = 0
    samples_total: int = 0
    batches_total: int = 0
    largest_batch: int = 0
    first_seconds: float | None = None
    last_seconds: float | None = None
    start_run_delay_seconds: float = 0.0
    """Seconds before the first step in which the main thread was ready to run, but the CPUs were busy."""
    times: Timer = field(default_factory=lambda: Timer("StepTime", is_time=True))
    awaits_flush: bool = False
    """Whether an optimizer has stepped since the latest flush: the next one ends the training step, as in profiles."""
    _ends: list[tuple[int, float, tuple[float, ...]]] = field(default_factory=list)  # first and latest end of a step

    def end_flush(self) -> None:
        """Records the step clock at the end of a training step. Call it after a flush if `awaits_flush`."""
        self.awaits_flush = False
        self._ends[1:] = [(self.steps_total, *step_clock.read_charges())]

    def split_times(self) -> tuple[int, float, tuple[float, ...]] | None:
        """Returns the number of steps after the first one, and their seconds: the sum, and those charged to each part.

        Returns None if there are none. The first step has the start-up, so profiles leave it out too.
        """
        if len(self._ends) < 2:
            return None
        (first, begun, before), (last, ended, charged) = self._ends
        parts = tuple(max(0.0, later - earlier) for earlier, later in zip(before, charged, strict=True))
        return last - first, ended - begun, parts

    def training_run_delay_seconds(self) -> float:
        """Returns the seconds since the first step in which the main thread was ready, but the CPUs were busy."""
        if self.first_seconds is None:
            return 0.0
        return max(0.0, (read_run_delay_seconds() or 0.0) - _IMPORT_RUN_DELAY_SECONDS - self.start_run_delay_seconds)

    def record_step(self) -> None:
        """Counts a training step and records the time since the previous one."""
        now = time.monotonic()
        if self.last_seconds is not None:
            self.times.add(now - self.last_seconds)
        else:
            self.first_seconds = now
            self.start_run_delay_seconds = (read_run_delay_seconds() or 0.0) - _IMPORT_RUN_DELAY_SECONDS
        self.last_seconds = now
        self.steps_total += 1
        self.awaits_flush = True
        call_sites.step = self.steps_total
        if ring.traced_steps:
            ring.traced_steps -= 1
        elif self.steps_total == 1:
            ring.traced_steps = TRACED_STEPS
        if ring.is_watching:
            ring.end_step()

    def record_batch(self, samples: int) -> None:
        """Counts a batch that a data loader returned to the script, and its samples."""
        self.batches_total += 1
        self.samples_total += samples
        self.largest_batch = max(self.largest_batch, samples)


steps = StepCounts()


step_hooks: list[Callable[[], None]] = []
"""Functions that are called at each training step, after it is counted."""


def count_training_steps() -> None:
    """Registers a hook that counts the training steps and calls the step hooks. Call it once."""
    boundaries = StepBoundaries()

    def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if boundaries.begins_step(optimizer):
            steps.record_step()
            for hook in step_hooks:
                hook()

    register_optimizer_step_post_hook(stepped)


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
