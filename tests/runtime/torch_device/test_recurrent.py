"""nn.LSTM, nn.GRU, nn.RNN and their cells: the bits of the CPU, forward and backward."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

Tensor = torch.Tensor
KINDS: dict[str, Callable[..., nn.Module]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN_TANH": nn.RNN,
    "RNN_RELU": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "LSTM_PROJECTED": lambda *a, **k: nn.LSTM(*a, proj_size=3, **k),
}
CELLS: dict[str, Callable[..., nn.Module]] = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}


def leaves(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        for part in result:
            if part is not None:
                yield from leaves(part)


def assert_same_bits(module: nn.Module, run: Callable[[nn.Module, Tensor], Any], value: Tensor) -> None:
    found = []
    for where in ("cpu", "xla"):
        moved, leaf = copy.deepcopy(module).to(where), value.detach().to(where).requires_grad_()
        torch.manual_seed(3)
        outputs = [t for t in leaves(run(moved, leaf)) if t.is_floating_point()]
        if torch.is_grad_enabled():
            sum((n + 1) * output.float().sum() for n, output in enumerate(outputs)).backward()  # type: ignore[union-attr]
        found.append([*outputs, leaf.grad, *(p.grad for p in moved.parameters())])
    for expected, got in zip(*found, strict=True):
        assert (expected is None) == (got is None)
        if expected is not None:
            assert got.stride() == expected.stride()
            assert torch.equal(got.cpu(), expected)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bidirectional", "batch_first", "bias"), list(itertools.product((False, True), repeat=3)))
def test_layers(xla: Any, kind: str, bidirectional: bool, batch_first: bool, bias: bool) -> None:
    module = KINDS[kind](4, 5, 2, bidirectional=bidirectional, batch_first=batch_first, bias=bias, dropout=0.4)
    value = torch.randn(7, 3, 4)
    lengths = [3, 3, 2, 2, 2, 1, 1] if batch_first else [7, 5, 2]

    def packed(moved: nn.Module, leaf: Tensor) -> Any:
        return moved(pack_padded_sequence(leaf, lengths, batch_first=batch_first))

    assert_same_bits(module, lambda moved, leaf: moved(leaf), value)
    assert_same_bits(module, packed, value)
    module.eval()
    with torch.no_grad():
        assert_same_bits(module, lambda moved, leaf: moved(leaf), value)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_other_types(xla: Any, kind: str, dtype: torch.dtype) -> None:
    assert_same_bits(KINDS[kind](4, 5).to(dtype), lambda moved, leaf: moved(leaf), torch.randn(7, 3, 4, dtype=dtype))


@pytest.mark.parametrize("kind", CELLS)
def test_cells(xla: Any, kind: str) -> None:
    def run(cell: nn.Module, value: Tensor) -> Any:
        state = None
        for step in value:
            state = cell(step, state)
        return state

    assert_same_bits(CELLS[kind](4, 5), run, torch.randn(6, 3, 4))


def test_nothing_runs_outside_of_graphs(xla: Any) -> None:
    from neurontools.runtime.counting.metrics import metrics

    module = nn.LSTM(4, 5, 2, bidirectional=True).to("xla")
    before = {name for name in metrics.counters if "::" in name}
    module(torch.randn(7, 3, 4, device="xla"))[0].sum().backward()
    with torch.no_grad():  # the mode at execution is not that of the recording
        xla.flush_all("Test")
    assert {name for name in metrics.counters if "::" in name} == before
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())
