"""The bytes of HBM that weights, gradients and the optimizer's state take, measured after a few steps."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import steps
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import Category

_LATEST_STEP = 4096  # nothing new comes after so many; the walk through all state is not for ever


@dataclass(frozen=True, slots=True)
class _Held:
    """The bytes that one optimizer held after its latest counted step."""

    gradient_bytes: dict[int, int]  # by id of the parameter: two optimizers may share one
    host_parameters: set[int]  # ids of the parameters with gradients that are on the host
    state_bytes: int


@dataclass(slots=True)
class OptimizerMemory:
    """The largest sums over all live optimizers; None before the first step of one.

    An optimizer is read only in the thread that has just stepped it. Other threads may replace the
    gradients of their own optimizers at any moment, and torch does not guard `grad` against that.
    """

    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    state_bytes: int | None = None
    host_parameters: int = 0  # with gradients, of any optimizer
    _held: WeakKeyDictionary[Any, _Held] = field(default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_new(self, optimizer: Any) -> bool:
        """Whether the optimizer has not been recorded yet."""
        with self._lock:
            return optimizer not in self._held

    def record(self, optimizer: Any) -> None:
        """Records the gradients and the state of the optimizer that this thread has just stepped."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = {id(p): (p, gradient) for p in parameters if (gradient := p.grad) is not None}
        held = _Held(
            gradient_bytes={key: _device_bytes(gradient) for key, (_, gradient) in gradients.items()},
            host_parameters={key for key, (p, _) in gradients.items() if p.device.type == "cpu"},
            state_bytes=sum(_device_bytes(v) for p in parameters for v in optimizer.state.get(p, {}).values()),
        )
        with self._lock:
            self._held[optimizer] = held
            self._update_largest(list(self._held.values()))

    def _update_largest(self, every: list[_Held]) -> None:
        gradients = {key: size for held in every for key, size in held.gradient_bytes.items()}
        host_parameters = set().union(*(held.host_parameters for held in every))
        weights = max((buffers.account_of(core).levels[Category.CONSTANTS] for core in device.taken), default=0)
        self.host_parameters = max(self.host_parameters, len(host_parameters))
        self.weight_bytes = max(self.weight_bytes or 0, weights)
        self.gradient_bytes = max(self.gradient_bytes or 0, sum(gradients.values()))
        self.state_bytes = max(self.state_bytes or 0, sum(held.state_bytes for held in every))


optimizer_memory = OptimizerMemory()


def install() -> None:
    """Records steps 1, 2, 4, 8 and so on, and the first step of each optimizer; once a process."""

    def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        count = steps.steps_total
        if count <= _LATEST_STEP and (count & (count - 1) == 0 or optimizer_memory.is_new(optimizer)):
            optimizer_memory.record(optimizer)

    register_optimizer_step_post_hook(stepped)


def _device_bytes(value: Any) -> int:
    if not isinstance(value, Tensor) or value.device.type != device.name:
        return 0
    return value.numel() * layouts.narrowed.get(value.dtype, value.dtype).itemsize
