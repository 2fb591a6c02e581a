"""neuronx_distributed.utils.model_utils: models on their way to the device."""

from __future__ import annotations

from typing import Any

import torch


def move_model_to_device(model: torch.nn.Module, device: Any) -> None:
    """Moves a model in place; what was noted at its parameters stays there."""
    model.to(device)
