"""Operators of torch.library: with right, wrong and no meta kernels, with views, in place, and with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.operator import operators

Tensor = torch.Tensor
LIBRARY = torch.library.Library("neurontools_custom", "FRAGMENT")
OPERATORS: Any = torch.ops.neurontools_custom


def raising(_value: Tensor) -> Tensor:
    raise ValueError("this meta kernel is broken")


def scale(value: Tensor, factor: float) -> None:
    value.mul_(factor)


# Name: schema, CPU kernel, meta kernel or None.
DEFINED: dict[str, tuple[str, Callable[..., Any], Callable[..., Any] | None]] = {
    "right": ("(Tensor x) -> Tensor", lambda x: x * 2 + 1, torch.empty_like),
    "without_meta": ("(Tensor x) -> Tensor", lambda x: x * 2 + 1, None),
    "raising_meta": ("(Tensor x) -> Tensor", lambda x: x + 1, raising),
    "other_shape": ("(Tensor x) -> Tensor", lambda x: torch.cat([x, x]), torch.empty_like),
    "other_dtype": ("(Tensor x) -> Tensor", lambda x: x.double(), torch.empty_like),
    "other_strides": ("(Tensor x) -> Tensor", lambda x: x.t().clone(), lambda x: x.new_empty(x.shape[::-1])),
    "other_count": ("(Tensor x) -> Tensor[]", lambda x: [x + 1, x + 2], lambda x: [torch.empty_like(x)]),
    "nothing_announced": ("(Tensor x) -> Tensor", lambda x: x + 1, lambda x: None),
    "data_dependent_liar": ("(Tensor x) -> Tensor", lambda x: x[x > 0].clone(), torch.empty_like),
    "several": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x.sum()), lambda x: (x + 1, x.new_empty(()))),
    "optional": ("(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: x + 1, lambda x, y=None: x.new_empty(3, 4)),
    "number": ("(Tensor x) -> int", lambda x: int((x > 0).sum()), None),
    "returns_its_input": ("(Tensor x) -> Tensor", lambda x: x, torch.empty_like),
    "reinterprets_its_input": ("(Tensor x) -> Tensor", lambda x: x.view(torch.int32), None),
}
for name, (schema, kernel, meta) in DEFINED.items():
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, kernel, "CPU")
    if meta is not None:
        LIBRARY.impl(name, meta, "Meta")
LIBRARY.define("view(Tensor(a) x) -> Tensor(a)")
LIBRARY.impl("view", lambda x: x.view(-1), "CPU")
LIBRARY.define("scale_(Tensor(a!) x, float factor) -> ()")
LIBRARY.impl("scale_", scale, "CPU")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x.relu() + 1, "CompositeImplicitAutograd")
WRONG = [n for n in DEFINED if n.startswith("other") or n in ("nothing_announced", "data_dependent_liar")]


def same(expected: Any, got: Any) -> bool:
    pairs = list(zip(tree_leaves(expected), tree_leaves(got), strict=True))
    return all(
        (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) and b.device.type == "xla" and a.equal(b.cpu())
        if isinstance(a, Tensor)
        else a == b
        for a, b in pairs
    )


@pytest.mark.parametrize("name", DEFINED)
def test_results_are_those_of_the_cpu_and_a_wrong_meta_kernel_is_counted_and_told(xla: Any, name: str) -> None:
    operator, full = getattr(OPERATORS, name), f"neurontools_custom::{name}"
    before = metrics.counters.get(full, 0)
    for seed in range(3):
        value = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        expected, got = operator(value), operator(value.to("xla"))
        xla.flush_all("Test")
        assert same(expected, got)
    if name in WRONG:
        assert metrics.counters[full] == before + 3
        assert metrics.counters[f"WrongMetaKernel:{full}"] == 1
        assert operators.get(full).dynamic


def test_a_right_meta_kernel_is_recorded_after_its_first_call(xla: Any) -> None:
    value = torch.randn(2, 5).to("xla")
    OPERATORS.right(value)
    before = dict(metrics.counters)
    result = OPERATORS.right(value)
    assert metrics.counters == before
    assert result.equal(value * 2 + 1)


def test_what_lies_later_is_an_error_and_right_from_then_on(xla: Any) -> None:
    """Announced right at first, and wrong for other values: nothing can be right any more in the recorded graph."""
    LIBRARY.define("late(Tensor x) -> Tensor")
    LIBRARY.impl("late", lambda x: x[x > 0].clone(), "CPU")
    LIBRARY.impl("late", torch.empty_like, "Meta")
    positive, mixed = torch.ones(3).to("xla"), torch.tensor([1.0, -1.0, 2.0]).to("xla")
    for _ in range(4):  # at once, interpreted, and as generated code
        assert OPERATORS.late(positive).tolist() == [1.0, 1.0, 1.0]
    result = OPERATORS.late(mixed)
    with pytest.raises(RuntimeError, match=r"late returned torch.float32\[2\] where its meta kernel announced"):
        xla.flush_all("Test")
    with pytest.raises(RuntimeError, match="this tensor has no value"):
        result.tolist()
    assert OPERATORS.late(mixed).tolist() == [1.0, 2.0]


def test_views_changes_in_place_and_no_kernel(xla: Any) -> None:
    value = torch.arange(4.0).view(2, 2).to("xla")
    OPERATORS.view(value).mul_(3)
    OPERATORS.scale_(value, 2.0)
    assert value.tolist() == [[0.0, 6.0], [12.0, 18.0]]
    LIBRARY.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="neurontools_custom::nowhere"):
        OPERATORS.nowhere(value)


def test_composite_ones_and_gradients(xla: Any) -> None:
    @torch.library.custom_op("neurontools_custom::sine", mutates_args=(), device_types="cpu")
    def sine(x: Tensor) -> Tensor:
        return x.sin()

    sine.register_fake(torch.empty_like)
    sine.register_autograd(
        lambda context, gradient: gradient * context.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    value = torch.randn(4)
    for _ in range(3):
        gradients = []
        for where in ("cpu", "xla"):
            leaf = value.detach().to(where).requires_grad_()
            (OPERATORS.composite(leaf) * sine(leaf)).sum().backward()
            gradients.append(leaf.grad)
        assert same(*gradients)
