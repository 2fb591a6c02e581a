"""What is recorded, compiled and executed, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.programs import compiler
from neurontools.runtime.tensors.buffer_table import buffers


def compilations(step: Callable[[int], object], count: int, device: Any) -> int:
    """How many of `count` steps needed a program that was not loaded yet."""
    before = metrics.counters.get("CachedCompile", 0)
    flushes = 0
    for index in range(count):
        step(index)
        flushes += 1
        device.flush_all("Test")
    return flushes - (metrics.counters.get("CachedCompile", 0) - before)


def pending(device: Any) -> int:
    return len(device.cores[0].graph.signatures)


def recorded_text(device: Any) -> str:
    graph = device.cores[0].graph
    return compiler.graph_text(graph, bytes([buffer.is_alive for buffer in graph.buffers]))


def test_nothing_computes_before_the_flush(xla: Any) -> None:
    value = torch.ones(2, 3).to("xla")
    before = xla.cores[0].statistics.executions_total
    result = ((value + 1) * 2).sum(1)
    assert pending(xla) == 3
    assert xla.cores[0].statistics.executions_total == before
    assert result.tolist() == [12.0, 12.0]
    assert pending(xla) == 0
    assert xla.cores[0].statistics.executions_total == before + 1


def test_the_graph_as_text(xla: Any) -> None:
    value = torch.ones(2, 3).to("xla")
    result = torch.mul(value, 2.5).t() + 1
    assert recorded_text(xla) == (
        "%0 = input float32[2,3]{3,1}\n"
        "%1 = aten::mul.Tensor(%0:float32[2,3]{3,1}, $0) -> (float32[2,3]{3,1}) of %0\n"
        "%2 = aten::add.Tensor(%0:float32[3,2]{1,3}, $0) -> (float32[3,2]{1,3}) of %1\n"
        "alive %0 %2"
    )
    del result


def test_dead_results_are_not_computed(xla: Any) -> None:
    value = torch.ones(4).to("xla")
    value.exp()
    kept = value + 1
    graph = xla.cores[0].graph
    alive = bytes([buffer.is_alive for buffer in graph.buffers])
    model = compiler.compile_graph(graph, alive, "1", "d41d8cd9")
    assert [i.operator.name for i in model.instructions] == ["aten::add.Tensor"]
    assert model.removed_count == 1
    assert kept.tolist() == [2.0] * 4


def test_temporaries_are_planned_into_the_scratchpad(xla: Any) -> None:
    value = torch.ones(256).to("xla")
    kept = ((value + 1) * 2).exp() + 3
    graph = xla.cores[0].graph
    model = compiler.compile_graph(graph, bytes([b.is_alive for b in graph.buffers]), "1", "d41d8cd9")
    assert model.scratchpad_bytes == 2 * 1024  # an operand and its result, never all three
    assert kept.shape == (256,)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda w, kept, i: kept.append(w.mul(1.0 + i / 7)), 1),
        (lambda w, kept, i: kept.append(w.mul(i)), 1),
        (lambda w, kept, i: kept.append(w.add(w, alpha=i)), 1),
        (lambda w, kept, i: kept.append(w.view(-1)[1 + i : 3 + i].sum()), 1),
        (lambda w, kept, i: kept.append(torch.ones(i + 1, 8, device="xla") @ w), 10),
    ],
    ids=["float", "int", "alpha", "offset", "shape"],
)
def test_what_makes_a_new_graph(xla: Any, step: Any, expected: int) -> None:
    weight = torch.ones(8, 8).to("xla")
    kept: list[torch.Tensor] = []

    def one(index: int) -> None:
        kept.clear()
        step(weight, kept, index)

    one(0)
    xla.flush_all("Test")
    assert compilations(one, 10, xla) in (expected - 1, expected)


def test_optimizers_do_not_recompile_each_step(xla: Any) -> None:
    layer = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.AdamW(layer.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    value = torch.ones(2, 4).to("xla")

    def step(_index: int) -> None:
        optimizer.zero_grad()
        layer(value).sum().backward()
        optimizer.step()
        schedule.step()

    step(0)
    step(1)
    assert compilations(step, 20, xla) <= 2


def test_a_graph_without_marks_is_cut(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "pending_bound", 50)
    total = torch.zeros(4).to("xla")
    for _ in range(333):
        total = total + 1
        assert pending(xla) < 50
    assert total.tolist() == [333.0] * 4


def test_programs_are_bounded(xla: Any) -> None:
    from neurontools.runtime.launch.setup import executor

    programs = executor().programs
    capacity, programs.capacity = programs.capacity, 4
    try:
        kept = []
        for size in range(1, 30):
            kept.append(torch.ones(size, device="xla") * 2)
            xla.flush_all("Test")
        assert len(programs) <= 9
        assert sum(map(len, executor().loaded.values())) == len(programs)
        code = sum(p.code_bytes for p in executor().loaded[0].values())
        assert buffers.account_of(xla.cores[0]).by_field()["model_code_bytes"] == code
    finally:
        programs.capacity = capacity


def test_data_dependent_operators_are_counted_fallbacks(xla: Any) -> None:
    value = torch.tensor([0.0, 1.0, 0.0, 2.0]).to("xla")
    before = metrics.counters.get("aten::nonzero", 0)
    assert (value * 2).nonzero().tolist() == [[1], [3]]
    assert metrics.counters["aten::nonzero"] == before + 1


def test_eager_runs_operator_by_operator(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.ones(3).to("xla")
    monkeypatch.setattr(xla, "eager", True)
    before = xla.cores[0].statistics.executions_total
    result = value + 1
    assert xla.cores[0].statistics.executions_total == before + 1
    assert pending(xla) == 0
    assert result.tolist() == [2.0] * 3


def test_printing_shows_values(xla: Any) -> None:
    assert repr(torch.arange(3.0).to("xla") + 1) == "tensor([1., 2., 3.], device='xla:0')"


def test_a_failed_execution_leaves_no_value_and_says_so(xla: Any) -> None:
    index = torch.tensor([9]).to("xla")
    value = torch.ones(3).to("xla")
    used = buffers.account_of(xla.cores[0]).total_bytes
    result = value.gather(0, index) + 1
    with pytest.raises(RuntimeError):
        xla.flush_all("Test")
    with pytest.raises(
        RuntimeError, match="this tensor has no value: the execution that should have computed it failed"
    ):
        result.cpu()
    assert value.tolist() == [1.0] * 3
    del result
    assert buffers.account_of(xla.cores[0]).by_field()["tensors_bytes"] <= used
