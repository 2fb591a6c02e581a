"""Parameters stay what they are when a module is moved, converted or loaded: the object, and what was noted at it.

For a backend in Python torch can't give a parameter another memory. It swaps the whole tensor with a new one, but not
where anybody else holds the tensor (a weak reference, a graph), and swaps the attributes of the object too. Here
the values alone are swapped, as they change on other devices. A graph of before that is still there computes with the
old values, and its backward says so when it comes to the parameter.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neurontools.runtime.torch_device.backward_errors import refusing_hook


class _Converting(threading.local):
    """How many conversions of modules a thread is in."""

    depth = 0


_converting = _Converting()


def install() -> None:
    """Changes how modules swap their parameters; once a process."""
    module: Any = torch.nn.Module
    for method in ("_apply", "_load_from_state_dict"):
        setattr(module, method, _noting(getattr(module, method)))
    utils: Any = torch.utils
    original = utils.swap_tensors

    @functools.wraps(original)
    def swap_tensors(t1: Any, t2: Any) -> None:
        if _converting.depth and not is_traceable_wrapper_subclass(t1) and not is_traceable_wrapper_subclass(t2):
            _swap_values(t1, t2)
        else:
            original(t1, t2)

    utils.swap_tensors = swap_tensors


def _noting(method: Any) -> Any:
    @functools.wraps(method)
    def noted(*arguments: Any, **keywords: Any) -> Any:
        _converting.depth += 1
        try:
            return method(*arguments, **keywords)
        finally:
            _converting.depth -= 1

    return noted


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
