"""How many bytes of HBM weights, gradients and the optimizer's state take: looked at after a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import steps
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import Category

_LATEST_STEP = 4096  # nothing new comes after so many; the walk through all state is not for ever


@dataclass(slots=True)
class OptimizerMemory:
    """The most that was seen of each at once, of all optimizers; None before the first step of one."""

    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    state_bytes: int | None = None
    host_parameters: int = 0  # that have gradients, of an optimizer whose others are on the device or not
    _known: WeakSet[Any] = field(default_factory=WeakSet)

    def is_new(self, optimizer: Any) -> bool:
        """Whether it is met for the first time."""
        if optimizer in self._known:
            return False
        self._known.add(optimizer)
        return True

    def look(self) -> None:
        """Takes note of what the optimizers that have stepped, and are still there, hold."""
        optimizers = list(self._known)
        held = [(each, p) for each in optimizers for group in each.param_groups for p in group["params"]]
        parameters = {id(p): p for _, p in held}.values()  # two optimizers may share one
        gradients = _bytes(p.grad for p in parameters if p.grad is not None)
        on_host = sum(p.device.type == "cpu" and p.grad is not None for p in parameters)
        self.host_parameters = max(self.host_parameters, on_host)
        state = _bytes(value for each, p in held for value in each.state.get(p, {}).values())
        weights = max((buffers.account_of(core).levels[Category.CONSTANTS] for core in device.taken), default=0)
        self.weight_bytes = max(self.weight_bytes or 0, weights)
        self.gradient_bytes = max(self.gradient_bytes or 0, gradients)
        self.state_bytes = max(self.state_bytes or 0, state)


optimizer_memory = OptimizerMemory()


def install() -> None:
    """Looks after steps 1, 2, 4, 8 and so on, and after the first of each optimizer; once a process."""

    def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        count = steps.steps_total
        is_new = optimizer_memory.is_new(optimizer)
        if count <= _LATEST_STEP and (is_new or count & (count - 1) == 0):
            optimizer_memory.look()

    register_optimizer_step_post_hook(stepped)


def _bytes(values: Iterator[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, Tensor) and value.device.type == device.name:
            total += value.numel() * layouts.narrowed.get(value.dtype, value.dtype).itemsize
    return total
