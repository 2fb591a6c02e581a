"""How long the script waits for the batches of its DataLoader, wherever it iterates over one."""

from __future__ import annotations

import functools
import time
from typing import Any

from torch.utils.data import dataloader

from neurontools.runtime.counting.step_clock import INPUT, step_clock
from neurontools.runtime.profiling.ring import ring


def install() -> None:
    """Charges each batch's wait to the input; once a process. What a thread fetches ahead nobody waits for."""
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def timed(self: Any) -> Any:
        if step_clock.is_background():
            return original(self)
        began = time.perf_counter()
        entry = step_clock.open(INPUT, began)
        try:
            return original(self)
        finally:
            step_clock.close(entry, time.perf_counter())
            if ring.is_on:
                ring.record_input_wait(int(began * 1e9))

    iterator.__next__ = timed
