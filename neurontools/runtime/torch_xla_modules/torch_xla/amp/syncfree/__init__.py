"""torch_xla.amp.syncfree: optimizers that skip a step whose gradients overflowed, without asking the host."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message

from .adam import Adam as Adam
from .adamw import AdamW as AdamW
from .sgd import SGD as SGD


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla.amp.syncfree.{name}"))
