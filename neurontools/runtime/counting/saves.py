"""How long torch.save takes, with the wait for what is still to be computed."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import torch

from neurontools.runtime.counting.places import places


@dataclass(slots=True)
class Saves:
    """Counts of one process."""

    saves_total: int = 0
    seconds: float = 0.0


saves = Saves()


def install() -> None:
    """Counts and times every call of torch.save; once a process."""
    save = torch.save

    @functools.wraps(save)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        places.note("save")
        began_seconds = time.perf_counter()
        try:
            return save(*arguments, **keywords)
        finally:
            saves.saves_total += 1
            saves.seconds += time.perf_counter() - began_seconds

    torch.save = timed
