"""torch.accelerator for the device: stock torch asks C++ parts that a Python backend has not, and partly crashes."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device import torch_module


def _index(which: Any) -> int:
    if which is None:
        return 0
    if isinstance(which, int):
        return which
    wanted = torch.device(which)
    if wanted.type != device.name:
        raise ValueError(f"{wanted} is not the current accelerator, which is {device.name}")
    return wanted.index or 0


def _forward(name: str) -> Any:
    function = getattr(torch_module, name)

    def forwarded(device_index: Any = None) -> Any:
        return function(_index(device_index))

    forwarded.__name__ = name
    forwarded.__doc__ = function.__doc__
    return forwarded


def empty_cache() -> None:
    """Nothing to do: freed HBM is free at once."""


def get_device_capability(which: Any = None) -> dict[str, Any]:
    """The element types that operators take."""
    torch_module.core_of(_index(which))
    quantized = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": types.difference(quantized)}


_FORWARDED = (
    *("synchronize", "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved"),
    *("max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats"),
)


def install() -> None:
    """Replaces what would fail; once a process."""
    accelerator: Any = torch.accelerator
    made: dict[str, Any] = {name: _forward(name) for name in _FORWARDED}
    made |= {
        "empty_cache": empty_cache,
        "empty_host_cache": empty_cache,
        "get_device_capability": get_device_capability,
        "get_memory_info": _forward("mem_get_info"),
        "set_device_index": lambda which, /: torch_module.set_device(_index(which)),
        "set_device_idx": lambda which, /: torch_module.set_device(_index(which)),
        "set_stream": lambda stream, /: torch_module.set_stream(stream),
    }
    memory = getattr(accelerator, "memory", None)
    for name, function in made.items():
        for place in (accelerator, memory):
            if hasattr(place, name):
                setattr(place, name, function)
