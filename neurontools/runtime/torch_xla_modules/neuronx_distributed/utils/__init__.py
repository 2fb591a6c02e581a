"""neuronx_distributed.utils and its module model_utils: the device of models, and the mode for the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def move_model_to_device(model: torch.nn.Module, device: Any) -> None:
    """Moves a model in place; its parameters keep their attributes."""
    model.to(device)


def cpu_mode() -> bool:
    """Whether NXD_CPU_MODE=1 asks models for their code for the CPU."""
    return os.environ.get("NXD_CPU_MODE") == "1"


@contextmanager
def init_on_device(
    device: torch.device, include_buffers: bool = False, force_custom_init_on_device: bool = False
) -> Iterator[None]:
    """Creates the tensors of modules on a device during the block. Parallel layers stay on the CPU."""
    del include_buffers, force_custom_init_on_device
    with torch.device(device):
        yield
