"""torch_xla.experimental.scan_layers: layers of one kind after each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, **hints: Any) -> Any:
    """What the layers make of the input, one after the other; `hints` are for XLA's compiler."""
    del hints
    for layer in layers:
        input_data = layer(input_data)
    return input_data
