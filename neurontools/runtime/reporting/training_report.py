"""What a training script tells of itself: steps, samples, how long it waits for its input, and checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

from neurontools.model import TrainingCounters
from neurontools.rpc.socket_path import candidate_sockets, configured_socket
from neurontools.runtime.reporting.daemon_connection import CoresUnavailable
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.util.errors import UserError

T = TypeVar("T")


class TrainingLog:
    """Counts of this process; any thread may add to them.

    `is_observed`: the simulated runtime is in this process, has the NeuronCores, counts steps and samples by itself and
    reports the rest from here.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counters = TrainingCounters()
        self.is_observed = False

    @property
    def counters(self) -> TrainingCounters:
        """What was counted so far."""
        return self._counters

    def step(self, samples: int | None) -> None:
        """A step of the optimizer; `samples` are those of this process in it."""
        with self._lock:
            now = self._counters
            total = now.samples_total if samples is None else (now.samples_total or 0) + samples
            self._counters = replace(
                now, steps_total=now.steps_total + 1, samples_total=total, last_step_at_seconds=time.monotonic()
            )

    def waited(self, seconds: float) -> None:
        """The script waited so long for a batch."""
        with self._lock:
            now = self._counters
            self._counters = replace(now, input_wait_seconds_total=(now.input_wait_seconds_total or 0.0) + seconds)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """A checkpoint is written within; one that fails does not count."""
        began = time.perf_counter()
        with self._lock:
            self._counters = replace(self._counters, checkpointing_since_seconds=time.monotonic())
        try:
            yield
            self.wrote_checkpoint(time.perf_counter() - began)
        finally:
            with self._lock:
                self._counters = replace(self._counters, checkpointing_since_seconds=None)

    def wrote_checkpoint(self, seconds: float | None) -> None:
        """A checkpoint was written; None where nobody knows how long it took."""
        with self._lock:
            now = self._counters
            taken = now.checkpoint_seconds_total if seconds is None else (now.checkpoint_seconds_total or 0.0) + seconds
            self._counters = replace(
                now, checkpoints_total=(now.checkpoints_total or 0) + 1, checkpoint_seconds_total=taken
            )


training_log = TrainingLog()


class TrainingReport:
    """Tells the daemon how the training of this process goes, once a second from a thread of its own.

    Made by `start`. Where no daemon is, and where it refuses the NeuronCores, training goes on and nothing is told; no
    method raises or waits. In a process on simulated NeuronCores, whose steps are counted already, it adds what the
    runtime does not see.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter

    @classmethod
    def start(cls, environment: Mapping[str, str] = os.environ, *, socket: str | None = None) -> TrainingReport:
        """Begins to report on the NeuronCores of NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES (neither: all)."""
        if training_log.is_observed:
            return cls(None)
        try:
            path = configured_socket(socket, environment)
            if not any(os.path.lexists(each) for each in ((path,) if path else candidate_sockets(environment))):
                return cls(None)
            reporter = Reporter.attach(environment, socket=socket)
        except (CoresUnavailable, UserError, ValueError) as error:
            warn_once("training report", f"this training is not reported: {error}")
            return cls(None)
        reporter.before_reports(lambda reporter: reporter.set_training(training_log.counters))
        return cls(reporter)

    @property
    def is_monitored(self) -> bool:
        """Whether a daemon is told, as far as is known."""
        return self._reporter is not None and self._reporter.is_monitored

    def step(self, samples: int | None = None) -> None:
        """A step of the optimizer; `samples` are those that this process put into it."""
        training_log.step(samples)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a loader; the time until each is there is input wait."""
        iterator = iter(loader)
        while True:
            began = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            training_log.waited(time.perf_counter() - began)
            yield batch

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """A checkpoint is written within; one that fails does not count."""
        with training_log.checkpoint():
            yield

    def flush(self) -> bool:
        """Waits until the daemon has a report of everything so far; False when it did not get one in time."""
        return self._reporter is not None and self._reporter.flush()

    def close(self) -> None:
        """Gives the cores back and ends the reports; may be called again."""
        if self._reporter is not None:
            self._reporter.close()

    def __enter__(self) -> TrainingReport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopTimer:
    """The moment of the last event of a training loop, from which the next one tells how long something took."""

    def __init__(self) -> None:
        self._last_seconds: float | None = None

    def event(self) -> None:
        """Something ended that is neither."""
        self._last_seconds = time.perf_counter()

    def batch_is_there(self) -> None:
        """What lay between the last event and this was waiting for a batch."""
        now = time.perf_counter()
        if self._last_seconds is not None:
            training_log.waited(now - self._last_seconds)
        self._last_seconds = now

    def checkpoint_is_written(self) -> None:
        """What lay between the last event and this was the writing of a checkpoint."""
        now = time.perf_counter()
        training_log.wrote_checkpoint(None if self._last_seconds is None else now - self._last_seconds)
        self._last_seconds = now


def samples_of(batch: Any) -> int | None:
    """How many samples a batch has: the length of its first tensor; None without one."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    parts: Iterable[Any] = ()
    if hasattr(batch, "values"):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return next((found for found in map(samples_of, parts) if found is not None), None)
