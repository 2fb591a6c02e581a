"""Input wait and checkpoints, from the moments at which a framework calls its callbacks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from neurontools.runtime.reporting.training_report import training_log


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
