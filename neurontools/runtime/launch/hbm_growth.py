"""Whether a training needs more HBM with every step: what is kept after each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import WARM_UP_STEPS, steps
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device


@dataclass(slots=True)
class HbmGrowth:
    """Bytes of all cores of this process after steps. `warm_bytes` is None until a few are over."""

    warm_bytes: int | None = None
    latest_bytes: int | None = None
    rises_total: int = 0  # steps after which more was held than ever before
    _most_bytes: int = 0

    def look(self) -> None:
        """A step is over."""
        held = sum(buffers.account_of(core).total_bytes for core in device.taken)
        if self.warm_bytes is None:
            if steps.steps_total < WARM_UP_STEPS:
                return
            self.warm_bytes = self._most_bytes = held
        self.latest_bytes = held
        if held > self._most_bytes:
            self._most_bytes = held
            self.rises_total += 1


hbm_growth = HbmGrowth()


def install() -> None:
    """Looks after every step of an optimizer, after it was counted; once a process."""

    def stepped(_optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        hbm_growth.look()

    register_optimizer_step_post_hook(stepped)
