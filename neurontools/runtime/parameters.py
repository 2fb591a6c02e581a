"""Tells parameters from other tensors: their bytes are accounted as constants of the models."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from neurontools.runtime.buffer import Tensor, buffers
from neurontools.runtime.device import device
from neurontools.runtime.memory import Category


def mark(tensors: Iterable[Tensor]) -> None:
    """Accounts the bytes of device tensors as constants."""
    with buffers.lock:
        for tensor in tensors:
            if tensor.device.type != device.name:
                continue
            buffer = buffers.of(tensor)
            if buffer.category is Category.CONSTANTS:
                continue
            if buffer.value is not None:
                buffer.core.memory.move(buffer.category, Category.CONSTANTS, buffer.layout.nbytes)
            buffer.category = Category.CONSTANTS


def install() -> None:
    """Follows parameters when modules are made on the device or moved to it; once a process."""

    def registered(_module: Any, _name: str, parameter: Any) -> None:
        if isinstance(parameter, Tensor) and parameter.device.type == device.name:
            mark([parameter])

    register_module_parameter_registration_hook(registered)
    original: Any = torch.nn.Module._apply

    @functools.wraps(original)
    def apply(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        mark(p for p in self._parameters.values() if p is not None)
        return result

    torch.nn.Module._apply = apply  # type: ignore[method-assign]
