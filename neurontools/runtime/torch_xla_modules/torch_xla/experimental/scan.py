"""torch_xla.experimental.scan: a function over the first dimension, carrying a value along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def scan(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, **hints: Any) -> tuple[Any, Any]:
    """What `fn(carry, x)` makes of the carry in the end, and its results one above the other.

    The calls are recorded one after the other: the graph grows with them, and gradients go through them as always.
    ValueError for nothing to go over. `hints` are for XLA's compiler.
    """
    del hints
    leaves, structure = tree_flatten(xs)
    if not leaves or not len(leaves[0]):
        raise ValueError("scan: xs has no elements to go over; give tensors with a first dimension")
    carry, results = init, []
    for index in range(len(leaves[0])):
        carry, result = fn(carry, tree_unflatten([leaf[index] for leaf in leaves], structure))
        results.append(result)
    return carry, tree_map(lambda *each: torch.stack(each), *results)
