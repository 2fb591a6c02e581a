"""torch_xla.experimental.scan and scan_layers: loops along the first dimension of tensors, and over equal layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Function = Callable[[Any, Any], tuple[Any, Any]]


def scan(fn: Function, init: Any, xs: Any, **hints: Any) -> tuple[Any, Any]:
    """Calls `fn(carry, x)` for each x, and returns the last carry and the stacked results.

    The calls are unrolled: the graph grows with their number, and autograd works as usual. Raises ValueError if `fn` is
    no function, or if `xs` is empty or has tensors of several lengths. Ignores `hints` for XLA's compiler.
    """
    leaves, structure = tree_flatten(xs)
    lengths = {len(leaf) for leaf in leaves}
    if not callable(fn):
        raise ValueError(f"scan: fn is of type {type(fn).__name__}; give a function of a carry and an x")
    if not any(lengths):
        raise ValueError("scan: xs has no elements to go over; give tensors with a first dimension")
    if len(lengths) > 1:
        raise ValueError(f"scan: the tensors of xs have the lengths {sorted(lengths)}; give them one length")
    carry, results = init, []
    for index in range(len(leaves[0])):
        carry, result = fn(carry, tree_unflatten([leaf[index] for leaf in leaves], structure))
        results.append(result)
    return carry, tree_map(lambda *each: None if each[0] is None else torch.stack(each), *results)


def value_and_grad_partitioned(
    fn: Function, init: Any, xs: Any, partition_fn: Callable[..., Any] | None = None
) -> tuple[Function, Function]:
    """Returns the forward and the backward function of one call `fn(carry, x)`, with their graphs from AOTAutograd.

    `forward(carry, x)` returns the new carry and `(y, activations)`. `backward(grad_of_carry, (grad_of_y,
    activations))` returns the gradients of the carry and of x: zeros or None where none is needed. `partition_fn`
    decides which activations are kept, by default all that the backward pass needs. Raises what `fn` raises.
    """
    from functorch.compile import aot_function, default_partition, make_boxed_func  # type: ignore[import-untyped]

    graphs: list[Any] = []

    def keep_graph(graph: Any, _inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph)

    def sample(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        return torch.empty_like(value).requires_grad_(requires_grad)

    # Gradients flow through the carry from call to call, even if the first carry needs none.
    carry = tree_map(lambda value: sample(value, requires_grad=True), init)
    x = tree_map(lambda value: sample(value[0], requires_grad=value.requires_grad), xs)
    _, input_structure = tree_flatten((carry, x))
    traced = aot_function(
        fn, fw_compiler=keep_graph, bw_compiler=keep_graph, partition_fn=partition_fn or default_partition
    )
    with torch.enable_grad():
        outputs, output_structure = tree_flatten(traced(carry, x))
        is_differentiable = [value is not None and value.requires_grad for value in outputs]
        used = [value for value, is_used in zip(outputs, is_differentiable, strict=True) if is_used]
        torch.autograd.backward(used, [torch.ones_like(value) for value in used])
    forward_graph, backward_graph = graphs

    def forward(carry: Any, x: Any) -> tuple[Any, Any]:
        values = [*forward_graph(*tree_flatten((carry, x))[0])]
        new_carry, y = tree_unflatten(values[: len(outputs)], output_structure)
        return new_carry, (y, values[len(outputs) :])

    def backward(carry: Any, x: Any) -> tuple[Any, Any]:
        grad_of_y, activations = x
        gradients, _ = tree_flatten((carry, grad_of_y))
        tangents = [value for value, is_used in zip(gradients, is_differentiable, strict=True) if is_used]
        grad_of_carry, grad_of_x = tree_unflatten([*backward_graph(*activations, *tangents)], input_structure)
        return grad_of_carry, grad_of_x

    return forward, backward


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, **hints: Any) -> Any:
    """Applies the layers one after the other and returns the result. Ignores `hints` for XLA's compiler."""
    for layer in layers:
        input_data = layer(input_data)
    return input_data
