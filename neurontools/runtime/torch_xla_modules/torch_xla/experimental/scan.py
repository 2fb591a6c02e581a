"""torch_xla.experimental.scan and scan_layers: loops along the first dimension of tensors, and over equal layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def scan(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, **hints: Any) -> tuple[Any, Any]:
    """Calls `fn(carry, x)` for each x, and returns the last carry and the stacked results.

    The calls are unrolled: the graph grows with their number, and autograd works as usual. Raises ValueError if `xs` is
    empty. Ignores `hints` for XLA's compiler.
    """
    leaves, structure = tree_flatten(xs)
    if not leaves or not len(leaves[0]):
        raise ValueError("scan: xs has no elements to go over; give tensors with a first dimension")
    carry, results = init, []
    for index in range(len(leaves[0])):
        carry, result = fn(carry, tree_unflatten([leaf[index] for leaf in leaves], structure))
        results.append(result)
    return carry, tree_map(lambda *each: torch.stack(each), *results)


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, **hints: Any) -> Any:
    """Applies the layers one after the other and returns the result. Ignores `hints` for XLA's compiler."""
    for layer in layers:
        input_data = layer(input_data)
    return input_data
