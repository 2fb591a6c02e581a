"""Tells what belongs to a model from other tensors: its bytes are accounted as constants.

The parameters and buffers of modules are a model's constants, what its state_dict has: the Neuron runtime calls the
weights so. Gradients, optimizer state, inputs, results and copies outside of modules are tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.core import Buffer, Tensor
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import Category

_Parameter: Any = torch.nn.Parameter
_Module: Any = torch.nn.Module


def mark(tensors: Iterable[Tensor | None], category: Category = Category.CONSTANTS) -> None:
    """Accounts the bytes of device tensors as constants, or as another category."""
    with buffers.lock:
        for tensor in tensors:
            if tensor is None or tensor.device.type != device.name or is_lazy(tensor):
                continue
            for part in _held(tensor):
                _account(buffers.of(part), category)


def _held(tensor: Any) -> Iterator[Tensor]:
    """The tensors with storages that one is made of: itself, or this rank's part of a distributed tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    wrapper: Any = tensor
    for name in wrapper.__tensor_flatten__()[0]:
        part = getattr(wrapper, name)
        if isinstance(part, Tensor):
            yield from _held(part)


def _account(buffer: Buffer, category: Category) -> None:
    if buffer.category is category:
        return
    if buffer.value is not None:
        buffer.core.memory.move(buffer.category, category, buffer.layout.nbytes)
    buffer.category = category


def _own(module: Any) -> Iterator[Tensor | None]:
    yield from module._parameters.values()
    yield from module._buffers.values()


def install() -> None:
    """Follows the parameters and buffers of modules on their ways to the device; once a process."""

    def registered(_module: Any, _name: str, tensor: Any) -> None:
        if isinstance(tensor, Tensor):
            mark([tensor])

    register_module_parameter_registration_hook(registered)
    register_module_buffer_registration_hook(registered)
    _keep_lazy()
    _after("_apply", lambda module: mark(_own(module)))
    _after("__setstate__", lambda module: mark(_own(module)))  # of a deepcopy, or from a pickle
    _after("load_state_dict", lambda module: mark([*module.parameters(), *module.buffers()]))
    _follow_data()


def _after(method: str, do: Any) -> None:
    original = getattr(_Module, method)

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        do(self)
        return result

    setattr(_Module, method, wrapped)


def _keep_lazy() -> None:
    """Parameters of LazyLinear and its like have no bytes to move: they are made anew for the device."""
    original = _Module._apply

    @functools.wraps(original)
    def apply(self: Any, fn: Any, *arguments: Any, **keywords: Any) -> Any:
        lazy = {name: p for name, p in self._parameters.items() if p is not None and is_lazy(p)}
        for name in lazy:
            self._parameters[name] = None
        try:
            result = original(self, fn, *arguments, **keywords)
        finally:
            self._parameters.update(lazy)
        for name, parameter in lazy.items():
            probe = fn(torch.empty(0, dtype=parameter.dtype, device=parameter.device))
            kind: Any = type(parameter)
            self._parameters[name] = kind(parameter.requires_grad, device=probe.device, dtype=probe.dtype)
        return result

    _Module._apply = apply


def _follow_data() -> None:
    """`parameter.data = tensor`: the new bytes are the parameter's; the old ones, if anybody holds them, are not."""
    data = torch.Tensor.data
    get, set_, delete = data.__get__, data.__set__, data.__delete__  # type: ignore[attr-defined]

    def assign(self: Any, value: Tensor) -> None:
        old = buffers.of(self) if self.device.type == device.name and not is_lazy(self) else None
        set_(self, value)
        if value.device.type != device.name:
            return
        with buffers.lock:
            new = buffers.of(value)
            if old is new:
                return
            if old is not None and old.is_alive:
                _account(old, Category.TENSORS)
            _account(new, Category.CONSTANTS)

    _Parameter.data = property(get, assign, delete, "The parameter's tensor without its history.")
