"""DistributedDataParallel with find_unused_parameters: its map of used parameters lives on the host.

For a device like ours torch copies that map through pinned memory, which only C++ can provide. With the map on the host
there is nothing to copy; it is reduced by gloo as the gradients are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.runtime.tensors.device import device

_EMPTY = torch.ops.aten.empty.memory_format


class _MapOnHost(TorchDispatchMode):
    """The int32 tensor that the reducer makes on the device of the parameters is made on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if func is _EMPTY and keywords.get("dtype") is torch.int32:
            wanted = keywords.get("device")
            if wanted is not None and torch.device(wanted).type == device.name:
                keywords["device"] = torch.device("cpu")
        return func(*args, **keywords)


def install() -> None:
    """Has the reducers of DistributedDataParallel made so; once a process."""
    parallel: Any = DistributedDataParallel
    make = parallel._ddp_init_helper

    @functools.wraps(make)
    def make_with_map_on_host(*arguments: Any, **keywords: Any) -> Any:
        mode: Any = _MapOnHost
        with mode():
            return make(*arguments, **keywords)

    parallel._ddp_init_helper = make_with_map_on_host
