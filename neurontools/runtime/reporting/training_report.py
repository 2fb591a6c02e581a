"""Reports of a training script: its steps, samples, input wait and checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
    """The training counters of this process; any thread may add to them.

    The simulated runtime sets `is_counted_by_runtime`: it counts steps and samples itself, and takes only the other
    counters from this log. It sets `runtime_reporter` when it takes cores.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counters = TrainingCounters()
        self.is_counted_by_runtime = False
        self.runtime_reporter: Reporter | None = None

    @property
    def counters(self) -> TrainingCounters:
        """The training counters so far."""
        return self._counters

    def add_step(self, samples: int | None) -> None:
        """Counts a training step; `samples` is the number of samples that this process put into it."""
        self._change({"steps_total": 1, "samples_total": samples}, last_step_at_seconds=time.monotonic())

    def add_input_wait(self, seconds: float) -> None:
        """Adds the time that the script waited for a batch."""
        self._change({"input_wait_seconds_total": seconds})

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Counts the time of the block as the writing of a checkpoint, unless the block raises."""
        began = time.perf_counter()
        self._change({}, checkpointing_since_seconds=time.monotonic())
        try:
            yield
            self.add_checkpoint(time.perf_counter() - began)
        finally:
            self._change({}, checkpointing_since_seconds=None)

    def add_checkpoint(self, seconds: float | None) -> None:
        """Counts a checkpoint; `seconds` is None if its duration is unknown."""
        self._change({"checkpoints_total": 1, "checkpoint_seconds_total": seconds})

    def _change(self, amounts: Mapping[str, float | None], **times: Any) -> None:
        """Adds `amounts` to the counters of these names, except unknown ones (None). Sets the fields in `times`."""
        with self._lock:
            before = self._counters
            added = {name: amount for name, amount in amounts.items() if amount is not None}
            totals: dict[str, Any] = {name: (getattr(before, name) or 0) + amount for name, amount in added.items()}
            self._counters = replace(before, **totals, **times)


training_log = TrainingLog()


def attach_reporter(
    subject: str, collect: Callable[[Reporter], None], environment: Mapping[str, str], socket: str | None
) -> Reporter | None:
    """Attaches a reporter that calls `collect` before each report; `subject` is what it reports, such as "training".

    Returns None if the runtime reports already, without a daemon, and if the daemon refuses the cores.
    """
    if training_log.is_counted_by_runtime:
        return None
    try:
        path = configured_socket(socket, environment)
        if not any(os.path.lexists(each) for each in ((path,) if path else candidate_sockets(environment))):
            return None
        reporter = Reporter.attach(environment, socket=socket)
    except (CoresUnavailable, UserError, ValueError) as error:
        warn_once(f"{subject} report", f"this {subject} is not reported: {error}")
        return None
    reporter.before_reports(collect)
    return reporter


def flush_reports(reporter: Reporter | None) -> bool:
    """Waits until the daemon has a report of everything so far. None means the reporter of the simulated runtime.

    Returns False at the time-out, and if this process reports to no daemon.
    """
    reporter = training_log.runtime_reporter if reporter is None else reporter
    return reporter is not None and reporter.flush()


class TrainingReport:
    """Reports the training of this process to the daemon, once a second from its own thread.

    Create it with `start`. No method raises, and only `flush` and `close` wait. Without a daemon, or if the daemon
    refuses the NeuronCores, training goes on and nothing is reported. On simulated NeuronCores the runtime itself
    counts the steps, and this class adds input wait and checkpoints.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter

    @classmethod
    def start(cls, environment: Mapping[str, str] = os.environ, *, socket: str | None = None) -> TrainingReport:
        """Starts to report for the NeuronCores that the environment requests.

        NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES selects the cores; without both, all cores.
        """
        return cls(
            attach_reporter(
                "training", lambda reporter: reporter.set_training(training_log.counters), environment, socket
            )
        )

    @property
    def is_monitored(self) -> bool:
        """Whether this process was attached to a daemon at its latest attach or report."""
        return self._reporter is not None and self._reporter.is_monitored

    def step(self, samples: int | None = None) -> None:
        """Counts a training step; `samples` is the number of samples that this process put into it."""
        training_log.add_step(samples)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields the batches of a loader and counts the wait for each as input wait."""
        iterator = iter(loader)
        while True:
            began = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            training_log.add_input_wait(time.perf_counter() - began)
            yield batch

    def checkpoint(self) -> AbstractContextManager[None]:
        """Counts the time of the block as the writing of a checkpoint, unless the block raises."""
        return training_log.checkpoint()

    def flush(self) -> bool:
        """Waits until the daemon has a report of everything so far; returns False at the time-out, or without one."""
        return flush_reports(self._reporter)

    def close(self) -> None:
        """Releases the cores and stops reporting. May be called again."""
        if self._reporter is not None:
            self._reporter.close()

    def __enter__(self) -> TrainingReport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopTimer:
    """Measures input wait and checkpoints as the time between the callbacks of a framework."""

    def __init__(self) -> None:
        self._last_seconds: float | None = None

    def mark(self) -> None:
        """Starts a new interval, without counting the time since the last mark."""
        self._last_seconds = time.perf_counter()

    def end_input_wait(self) -> None:
        """Counts the time since the last mark as input wait."""
        now = time.perf_counter()
        if self._last_seconds is not None:
            training_log.add_input_wait(now - self._last_seconds)
        self._last_seconds = now

    def end_checkpoint(self) -> None:
        """Counts the time since the last mark as the writing of a checkpoint."""
        now = time.perf_counter()
        training_log.add_checkpoint(None if self._last_seconds is None else now - self._last_seconds)
        self._last_seconds = now


def count_samples(batch: Any) -> int | None:
    """Returns the number of samples of a batch: the length of its first tensor. None without a tensor."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    parts: Iterable[Any] = ()
    if hasattr(batch, "values"):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return next((found for found in map(count_samples, parts) if found is not None), None)
