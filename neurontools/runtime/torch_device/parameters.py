"""Module parameters: their memory category, and their identity when a module moves to the device.

Parameters and buffers of modules count as constants, as the Neuron runtime counts weights. Gradients, optimizer state,
inputs, results and copies outside modules count as tensors.

On a Python backend, torch can't give a parameter new memory. It swaps whole tensors with their attributes, which fails
if a weak reference or a graph holds the parameter. This module makes torch swap only the values, as on other devices. A
graph from before the swap computes with the old values; its backward raises an error when it reaches the parameter.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neurontools.runtime.tensors.buffers import Buffer, Category, Tensor, buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device.interrupts import refusing_hook

_Parameter: Any = torch.nn.Parameter
_Module: Any = torch.nn.Module
_libraries: list[torch.library.Library] = []


class _Converting(threading.local):
    """Per thread: the number of nested module conversions."""

    depth = 0


_converting = _Converting()


def keep_parameter_identity() -> None:
    """Patches torch so that converting a module swaps only the values of its parameters. Call once per process."""
    _Module._apply = _mark_conversion(_Module._apply)
    # Swapped values would lose the hooks by which DistributedDataParallel averages the gradients of a parameter.
    _Module._load_from_state_dict = _without_swaps(_Module._load_from_state_dict)
    utils: Any = torch.utils
    original = utils.swap_tensors

    @functools.wraps(original)
    def swap_tensors(t1: Any, t2: Any) -> None:
        if _converting.depth and not is_traceable_wrapper_subclass(t1) and not is_traceable_wrapper_subclass(t2):
            _swap_values(t1, t2)
        else:
            original(t1, t2)

    utils.swap_tensors = swap_tensors


def _mark_conversion(method: Any) -> Any:
    assigning = _without_swaps(method)

    @functools.wraps(method)
    def converting(module: Any, *arguments: Any, **keywords: Any) -> Any:
        _converting.depth += 1
        try:
            if isinstance(module, torch.jit.ScriptModule):  # C++ would keep the tensors that Python swaps
                return assigning(module, *arguments, **keywords)
            return method(module, *arguments, **keywords)
        finally:
            _converting.depth -= 1

    return converting


def _without_swaps(method: Any) -> Any:
    """Makes a method copy into parameters or assign their data, as on other devices."""

    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            return method(*arguments, **keywords)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    return call


def _swap_values(parameter: Any, new: Any) -> None:
    if parameter.is_leaf and parameter.requires_grad and parameter._use_count() > 1:
        node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        node.register_prehook(refusing_hook(_was_converted))
    core: Any = torch._C
    core._swap_tensor_impl(parameter, new)


def _was_converted(_gradients: Any) -> None:
    raise RuntimeError(
        "backward through a parameter that was moved or converted since forward; move the module before its forward "
        "pass, or after backward"
    )


def assign_category(tensors: Iterable[Tensor | None], category: Category = Category.CONSTANTS) -> None:
    """Sets the memory category of device tensors and skips all others."""
    with buffers.lock:
        for tensor in tensors:
            if tensor is None or tensor.device.type != device.name or is_lazy(tensor):
                continue
            for part in _storage_tensors(tensor):
                _account(buffers.buffer_of(part), category)


def _storage_tensors(tensor: Any) -> Iterator[Tensor]:
    """Yields the tensors that hold the storages: the tensor itself, or this rank's part of a distributed tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):
            yield from _storage_tensors(part)


def _account(buffer: Buffer, category: Category) -> None:
    if buffer.category is category:
        return
    if buffer.value is not None:
        buffer.core.memory.move(buffer.category, category, buffer.layout.nbytes)
    buffer.category = category


def account_parameters() -> None:
    """Counts parameters and buffers of modules on the device as constants. Call once per process."""

    def registered(_module: Any, _name: str, tensor: Any) -> None:
        if isinstance(tensor, Tensor):
            assign_category([tensor])

    register_module_parameter_registration_hook(registered)
    register_module_buffer_registration_hook(registered)
    _recreate_lazy_parameters()
    for method in ("_apply", "__setstate__"):  # deepcopy and unpickling call __setstate__
        _run_after_method(
            method, lambda module: assign_category([*module._parameters.values(), *module._buffers.values()])
        )
    _run_after_method("load_state_dict", lambda module: assign_category([*module.parameters(), *module.buffers()]))
    _follow_data()


def _run_after_method(method: str, do: Any) -> None:
    original = getattr(_Module, method)

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        do(self)
        return result

    setattr(_Module, method, wrapped)


def _recreate_lazy_parameters() -> None:
    """Recreates lazy parameters (LazyLinear, …) on a module's new device, because they have no bytes to move."""
    original = _Module._apply

    @functools.wraps(original)
    def apply(self: Any, fn: Any, *arguments: Any, **keywords: Any) -> Any:
        lazy = {name: p for name, p in self._parameters.items() if p is not None and is_lazy(p)}
        for name in lazy:
            self._parameters[name] = None
        try:
            result = original(self, fn, *arguments, **keywords)
        finally:
            for name, parameter in lazy.items():  # the parameters of a TorchScript module have no update()
                self._parameters[name] = parameter
        for name, parameter in lazy.items():
            probe = fn(torch.empty(0, dtype=parameter.dtype, device=parameter.device))
            kind: Any = type(parameter)
            self._parameters[name] = kind(parameter.requires_grad, device=probe.device, dtype=probe.dtype)
        return result

    _Module._apply = apply


def _follow_data() -> None:
    """Patches the assignment `parameter.data = tensor` to update memory categories.

    The new storage counts as constants; the old one, if still alive, as tensors. The tensor may be on another device:
    FullyShardedDataParallel moves parameters to the host that way, and back.
    """
    library = torch.library.Library("aten", "IMPL")
    # torch's own answer for a Python backend is no. The assignment itself then works as on other devices.
    library.impl("_has_compatible_shallow_copy_type", lambda _own, _new: True, "PrivateUse1")
    _libraries.append(library)
    data = torch.Tensor.data
    get, set_, delete = data.__get__, data.__set__, data.__delete__  # type: ignore[attr-defined]

    def assign(self: Any, value: Tensor) -> None:
        old = buffers.buffer_of(self) if self.device.type == device.name and not is_lazy(self) else None
        set_(self, value)
        with buffers.lock:
            new = buffers.buffer_of(value) if value.device.type == device.name else None
            if old is new:
                return
            if old is not None and old.is_alive:
                _account(old, Category.TENSORS)
            if new is not None:
                _account(new, Category.CONSTANTS)

    _Parameter.data = property(get, assign, delete, "The parameter's tensor without its history.")
