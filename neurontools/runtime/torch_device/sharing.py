"""Device tensors between processes: through queues they go as copies; shared with another process they can't be."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from neurontools.runtime.tensors.device import device

Tensor = torch.Tensor


def install(received: Callable[[Tensor, str, bool, bool], Tensor]) -> None:
    """Teaches torch.multiprocessing about the device; once a process.

    `received` makes the tensor in the process that gets it: of its value, its device there, whether it requires a
    gradient and whether it is a parameter. It is pickled by its name.
    """

    def reduce(tensor: Tensor) -> Any:
        """As a CPU tensor in shared memory, which the receiver moves to its own device."""
        if tensor.device.type != device.name:
            stock: Any = reductions.reduce_tensor
            return stock(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError("a tensor with a gradient's history can't be sent to another process; detach() it first")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return received, (tensor.detach().cpu(), str(tensor.device), tensor.requires_grad, is_parameter)

    for kind in (Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)
    original: Any = Tensor.share_memory_

    def share_memory_(self: Tensor) -> Tensor:
        if self.device.type == device.name:
            raise _unshared()
        shared: Tensor = original(self)
        return shared

    Tensor.share_memory_ = share_memory_  # type: ignore[method-assign]


def _unshared() -> NotImplementedError:
    return NotImplementedError(
        f"{device.name}: the memory of a NeuronCore can't be shared with other processes; share the CPU tensor and "
        f"move it with .to({device.name!r}), or send the tensor through a queue, which copies it"
    )
