"""torch_xla.amp: automatic mixed precision."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.tensors.device import device as _device

from . import syncfree

__all__ = ["GradScaler", "autocast", "syncfree"]


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801
    """torch.autocast for the Neuron device, with bfloat16 as the default type."""

    def __init__(
        self, device: Any = None, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True
    ) -> None:
        super().__init__(_device.name, enabled=enabled, dtype=dtype or torch.bfloat16, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for the Neuron device. Training in bfloat16 does not need a GradScaler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("use_zero_grad", None)
        super().__init__(_device.name, *args, **kwargs)
