"""neuronx_distributed.utils and its module model_utils: moving models to the device."""

from __future__ import annotations

from typing import Any

import torch


def move_model_to_device(model: torch.nn.Module, device: Any) -> None:
    """Moves a model in place; its parameters keep their attributes."""
    model.to(device)
