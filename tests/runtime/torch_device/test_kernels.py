"""The runtime's own kernels against torch on the CPU: values, gradients, strides, FLOPs and refused arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from neurontools.runtime.launch.device_registration import executor
from tests.harness.seeding import seed

Make = Callable[..., torch.Tensor]
Work = Callable[[Make], Any]


def outcome(work: Work, where: str) -> tuple[list[Any], str]:
    """Returns the results and the gradients of the tensors that `work` makes, and the error if there is one."""
    seed(0)
    made: list[torch.Tensor] = []

    def make(*shape: int, dtype: torch.dtype = torch.float32, gradient: bool = True, **layout: Any) -> torch.Tensor:
        values = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).sin()
        tensor = values.to(dtype).to(where).requires_grad_(gradient and dtype.is_floating_point)
        made.append(tensor)
        return tensor.transpose(*layout["swapped"]) if layout else tensor

    try:
        found = [each for each in tree_leaves(work(make)) if isinstance(each, torch.Tensor)]
        needed = [each for each in found if each.requires_grad]
        if needed:
            sum((each * each).abs().sum() for each in needed).backward()  # type: ignore[union-attr]
        return [*found, *(tensor.grad for tensor in made)], ""
    except (RuntimeError, IndexError, ValueError) as error:
        return [], f"{type(error).__name__}: {error}"


def compare(work: Work) -> int:
    """Compares the device with the CPU and returns the FLOPs that the device counted."""
    expected, expected_error = outcome(work, "cpu")
    before = executor().work().flops
    found, error = outcome(work, "xla")
    assert error == expected_error
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.device.type == "xla"
            torch.testing.assert_close(mine.detach().cpu(), theirs.detach())
            strides = [(a, b) for n, a, b in zip(mine.shape, mine.stride(), theirs.stride(), strict=True) if n > 1]
            assert not mine.numel() or all(a == b for a, b in strides)
    return executor().work().flops - before


def linear(make: Make, shape: Any, mask: Any, dtype: torch.dtype, weight: Any) -> Any:
    bias = make(5, dtype=dtype, gradient=mask[2]) if mask[2] is not None else None
    return functional.linear(make(*shape, dtype=dtype, gradient=mask[0]), weight(make, mask[1], dtype), bias)


def rows(make: Make, gradient: bool, dtype: torch.dtype) -> torch.Tensor:
    return make(5, 4, dtype=dtype, gradient=gradient)


def columns(make: Make, gradient: bool, dtype: torch.dtype) -> torch.Tensor:
    return make(4, 5, dtype=dtype, gradient=gradient, swapped=(0, 1))


MASKS = ((True, True, True), (True, True, None), (False, True, True), (True, False, False), (False, False, True))
TYPES = (torch.float64, torch.bfloat16, torch.complex64)
FLOAT = torch.float32
OTHER_LAYERS: tuple[Work, ...] = (
    *(partial(linear, shape=(3, 4), mask=MASKS[0], dtype=dtype, weight=rows) for dtype in TYPES),
    lambda make: functional.linear(make(4, 3, swapped=(0, 1)), make(5, 4), make(5)),
    lambda make: functional.linear(make(3, 2, 4, swapped=(0, 1)), make(5, 4), make(5)),
    lambda make: functional.linear(make(3, 4), make(5, 4), make(1)),
)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 3, 4), None])
def test_linear_layers(xla: Any, shape: tuple[int, ...] | None) -> None:
    works = (partial(linear, shape=shape, mask=m, dtype=FLOAT, weight=w) for m, w in product(MASKS, (rows, columns)))
    for work in works if shape else OTHER_LAYERS:
        counted = compare(work)
        with FlopCounterMode(display=False) as counter:
            outcome(work, "cpu")
        assert counted == counter.get_total_flops() or shape in (None, (4,))


def recurrent(kind: type[nn.Module], packed: bool, **options: Any) -> Work:
    def work(make: Make) -> Any:
        module: Any = kind(3, 4, **options).to(options.get("dtype", torch.float32))
        value: Any = make(2, 3, 3)
        module = module.to(value.device).train(
            "dropout" not in options
        )  # without noise, of which each device has its own
        if packed:
            lengths = torch.tensor([3, 2] if options.get("batch_first") else [2, 1, 1])
            value = nn.utils.rnn.pack_padded_sequence(value, lengths, options.get("batch_first", False))
        output, state = module(value)
        (output.data if packed else output).sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        return [(output.data if packed else output).detach(), [each.detach() for each in tree_leaves(state)], gradients]

    return work


KINDS: tuple[tuple[type[nn.Module], dict[str, Any]], ...] = (
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
)
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "bidirectional": True},
    {"num_layers": 2, "dropout": 0.5},
)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers(xla: Any, kind: type[nn.Module], options: dict[str, Any], packed: bool) -> None:
    for way in WAYS:
        compare(recurrent(kind, packed, **options, **way))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_without_gradients_or_steps(xla: Any, kind: type[nn.Module]) -> None:
    with torch.no_grad():
        compare(lambda make: kind(3, 4).to(make(1).device)(make(2, 3, 3)))
    compare(lambda make: kind(3, 4).to(make(1).device)(make(0, 3, 3)))


def attention(make: Make, **options: Any) -> torch.Tensor:
    heads = options.pop("heads", 2)
    mask = options.pop("mask", None)
    query, key, value = make(2, 2, 5, 8), make(2, heads, 5, 8), make(2, heads, 5, 8)
    return functional.scaled_dot_product_attention(query, key, value, None if mask is None else mask(make), **options)


def test_attention_and_dropout(xla: Any) -> None:
    for options in (
        {},
        {"is_causal": True},
        {"scale": 0.25},
        {"heads": 1, "enable_gqa": True},
        {"mask": lambda make: make(5, 5, gradient=False) > 0},
        {"mask": lambda make: make(2, 1, 5, 5, gradient=False)},
    ):
        compare(lambda make, o=options: attention(make, **o))  # type: ignore[misc]
    for probability, is_training in product((0.0, 0.3, 1.0), (True, False)):
        compare(lambda make, p=probability, t=is_training: functional.dropout(make(4, 5), p, t))  # type: ignore[misc]
    for mode in (True, False, None):
        compare(lambda make, m=mode: torch.native_dropout(make(4, 5), 0.25, m))  # type: ignore[misc]


def indices(make: Make, *values: Any) -> torch.Tensor:
    return torch.tensor(values, device=make(1).device)


REFUSED_OR_NOT: tuple[Work, ...] = (
    lambda make: functional.linear(make(3, 4), make(5, 3)),
    lambda make: functional.linear(make(3, 4), make(5, 4), make(4)),
    lambda make: functional.linear(make(3, 4), make(5, 4, dtype=torch.float64)),
    lambda make: functional.layer_norm(make(2, 3), (3,), make(3), make(3)),
    lambda make: functional.layer_norm(make(2, 3), (2, 3)),
    lambda make: functional.layer_norm(make(2, 3), (2,)),
    lambda make: functional.layer_norm(make(2, 3), ()),
    lambda make: functional.layer_norm(make(2, 3), (3,), make(2), make(3)),
    lambda make: functional.layer_norm(make(2, 3), (3,), make(3), make(2)),
    lambda make: functional.group_norm(make(2, 4, 3), 2, make(4), make(4)),
    lambda make: functional.group_norm(make(2, 4, 3), 3),
    lambda make: functional.group_norm(make(2, 4), 2),
    lambda make: functional.group_norm(make(2, 4, 3), 2, make(3), make(4)),
    lambda make: functional.conv1d(make(1, 4, 5), make(6, 2, 3), make(6), groups=2),
    lambda make: functional.conv1d(make(1, 4, 5), make(6, 2, 3), make(5), groups=2),
    lambda make: functional.conv1d(make(1, 3, 5), make(4, 1, 3), groups=3),
    lambda make: functional.conv_transpose1d(make(1, 4, 5), make(4, 3, 3), make(6), groups=2),
    lambda make: functional.conv_transpose1d(make(1, 4, 5), make(4, 3, 3), make(4), groups=2),
    *(lambda make, d=dim: make(2, 3).softmax(d) for dim in (-3, -2, 1, 2)),
    *(lambda make, d=dim: make(2, 3).log_softmax(d) for dim in (-3, -2, 1, 2)),
    *(lambda make, d=dim: make(1).squeeze().softmax(d) for dim in (-2, -1, 0, 1)),
    lambda make: make(3, 2).index_select(0, indices(make, 2, 0)),
    lambda make: make(3, 2).index_select(0, indices(make, [2, 0])),
    lambda make: make(3, 2, gradient=False).index_put_((indices(make, 2, 0),), make(2, 2, gradient=False)),
    lambda make: make(3, 2, gradient=False).index_put_((indices(make, 2, 0),), make(1, gradient=False)),
    lambda make: make(3, 2, gradient=False).index_put_((indices(make, 2, 0),), make(3, 2, gradient=False)),
    lambda make: make(3, 2, gradient=False).index_put_((indices(make, True, False, True),), make(1, gradient=False)),
    lambda make: make(3, 2, gradient=False).index_put_((indices(make, True, False),), make(1, gradient=False)),
    lambda make: make(3, 2).index_add(0, indices(make, 2, 0), make(2, 2)),
    lambda make: make(3, 2).index_add(1, indices(make, 1, 0), make(3, 2)),
    lambda make: make(3, 2).index_add(-2, indices(make, 1, 0), make(2, 2)),
    lambda make: make(3, 2).index_add(0, indices(make, 2, 0), make(3, 2)),
    lambda make: make(3, 2).index_add(0, indices(make, [2, 0]), make(2, 2)),
    lambda make: make(3, 2).index_add(2, indices(make, 2, 0), make(2, 2)),
)


def test_arguments_that_the_cpu_refuses_are_refused_with_its_error(xla: Any) -> None:
    for work in REFUSED_OR_NOT:
        compare(work)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a.mm(b)", 2 * 3 * 4 * 5),
        ("torch.addmm(c, a, b)", 2 * 3 * 4 * 5),
        ("c.clone().addmm_(a, b)", 2 * 3 * 4 * 5),
        ("a.mv(b[:, 0])", 2 * 3 * 4),
        ("torch.addmv(c[:, 0], a, b[:, 0])", 2 * 3 * 4),
        ("a[0].dot(b[:, 0])", 2 * 4),
        ("a.expand(2, 3, 4).bmm(b.expand(2, 4, 5))", 2 * 2 * 3 * 4 * 5),
        ("torch.addbmm(c, a.expand(2, 3, 4), b.expand(2, 4, 5))", 2 * 2 * 3 * 4 * 5),
        ("torch.baddbmm(c.expand(2, 3, 5), a.expand(2, 3, 4), b.expand(2, 4, 5))", 2 * 2 * 3 * 4 * 5),
        ("a + a", 0),
    ],
)
def test_flops_of_products(xla: Any, expression: str, expected: int) -> None:
    def work(make: Make) -> Any:
        names = {"a": (3, 4), "b": (4, 5), "c": (3, 5)}
        tensors = {name: make(*shape, gradient=False) for name, shape in names.items()}
        return eval(expression, {"torch": torch, **tensors})

    assert compare(work) == expected
