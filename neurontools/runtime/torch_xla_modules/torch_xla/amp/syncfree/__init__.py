"""torch_xla.amp.syncfree: optimizers that skip a step whose gradients overflowed, without asking the host."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of

from .adam import Adam as Adam
from .adamw import AdamW as AdamW
from .sgd import SGD as SGD


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.amp.syncfree.{name}"))
