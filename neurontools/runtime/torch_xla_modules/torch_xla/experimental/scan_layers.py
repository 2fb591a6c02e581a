"""torch_xla.experimental.scan_layers: applies a sequence of equal layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, **hints: Any) -> Any:
    """Applies the layers one after the other and returns the result. Ignores `hints` for XLA's compiler."""
    del hints
    for layer in layers:
        input_data = layer(input_data)
    return input_data
