"""What is recorded, compiled and executed, and when; how executions fail, and what is counted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.execution.policy import ExecutionFailed, ExecutionPolicy, deadline
from neurontools.runtime.launch import device_registration
from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.tensors.buffers import buffers
from neurontools.runtime.tensors.cores import Monitor


def compilations(step: Callable[[int], object], count: int, device: Any) -> int:
    """How many of `count` steps needed a program that was not loaded yet."""
    before = metrics.counters.get("CachedCompile", 0)
    for index in range(count):
        step(index)
        device.flush_all("Test")
    return count - (metrics.counters.get("CachedCompile", 0) - before)


def pending(device: Any) -> int:
    return len(device.cores[0].graph.signatures)


def alive_in(graph: Any) -> bytes:
    return bytes([buffer.is_alive for buffer in graph.buffers])


def compiled(device: Any) -> CompiledGraph:
    graph = device.cores[0].graph
    return compiler.compile_graph(graph, alive_in(graph), "1", "d41d8cd9")


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
    graph = xla.cores[0].graph
    assert compiler.graph_text(graph, alive_in(graph)) == (
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
    model = compiled(xla)
    assert [i.operator.name for i in model.instructions] == ["aten::add.Tensor"]
    assert model.removed_count == 1
    assert kept.tolist() == [2.0] * 4


def test_temporaries_are_planned_into_the_scratchpad(xla: Any) -> None:
    value = torch.ones(256).to("xla")
    kept = ((value + 1) * 2).exp() + 3
    assert compiled(xla).scratchpad_bytes == 2 * 1024  # an operand and its result, never all three
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


def test_a_graph_without_marks_is_cut(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "pending_bound", 50)
    total = torch.zeros(4).to("xla")
    for _ in range(333):
        total = total + 1
        assert pending(xla) < 50
    assert total.tolist() == [333.0] * 4


class RecordingMonitor(Monitor):
    """A monitor that keeps what it is told."""

    def __init__(self) -> None:
        self.statuses: list[NrtStatus] = []

    def begin(self, handle: Any, at_seconds: float) -> Any:
        return at_seconds

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        assert queued_seconds >= 0
        assert at_seconds >= started
        self.statuses.append(status)


@pytest.fixture
def executor(xla: Any) -> Iterator[Any]:
    """That of this process, whose monitor keeps what it is told."""
    made: Any = device_registration.executor()
    policy, monitor = made.policy, made.monitor
    forget_programs(made)
    made.monitor = RecordingMonitor()
    yield made
    forget_programs(made)
    made.policy, made.monitor = policy, monitor


def forget_programs(executor: Any) -> None:
    """Unloads all: each is known to the monitor that it was loaded under."""
    for programs in list(executor.loaded.values()):
        for loaded in list(programs.values()):
            executor.unload(loaded)
    executor.programs.clear()


@pytest.mark.parametrize("sizes", [range(1, 30), [*range(1, 10), 1]], ids=["only new", "an old one again"])
def test_programs_are_bounded(xla: Any, executor: Any, sizes: Iterable[int]) -> None:
    programs = executor.programs
    capacity, programs.capacity = programs.capacity, 4
    try:
        kept = []
        for size in sizes:
            kept.append(torch.ones(size, device="xla") * 2)
            xla.flush_all("Test")
        assert len(programs) <= 9
        assert sum(map(len, executor.loaded.values())) == len(programs)
        code = sum(p.code_bytes for p in executor.loaded[0].values())
        assert buffers.account_of(xla.cores[0]).by_field()["model_code_bytes"] == code
    finally:
        programs.capacity = capacity


def nan_parameter() -> torch.Tensor:
    layer = nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=float("nan"))
    layer(torch.ones(1, 2).to("xla")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return layer.weight


@pytest.mark.parametrize(
    ("compute", "is_error"),
    [
        (lambda zero: zero / zero, True),
        (lambda zero: zero.div_(zero), True),
        (lambda _zero: nan_parameter(), True),
        (lambda zero: (zero + float("inf")) * torch.tensor([1.0, -1.0]).to("xla"), False),
    ],
    ids=["result", "in place", "parameter", "infinities"],
)
def test_nan_is_counted_and_training_goes_on(
    xla: Any, executor: Any, compute: Callable[[torch.Tensor], torch.Tensor], is_error: bool
) -> None:
    zero = torch.zeros(2).to("xla")
    xla.flush_all("Test")
    executor.monitor.statuses.clear()
    before = xla.cores[0].statistics.numerical_errors_total
    result = compute(zero)
    xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR if is_error else NrtStatus.SUCCESS]
    assert xla.cores[0].statistics.numerical_errors_total == before + is_error
    assert result.isnan().all().item() is is_error


def test_nan_is_an_error_where_it_is_asked_for(xla: Any, executor: Any) -> None:
    executor.policy = ExecutionPolicy.from_environment({"NEURON_FAIL_ON_NAN": "1"})
    kept = torch.zeros(2).to("xla").log().mul(0)
    with pytest.raises(ExecutionFailed, match=r"^NRT_EXEC_COMPLETED_WITH_NUM_ERR\(1003\): the results .* have NaN"):
        xla.flush_all("Test")
    assert kept.isnan().all().item()


def _apply_to(value: torch.Tensor, function: Callable[[torch.Tensor], object]) -> object:
    return function(value)


REFUSED: dict[str, Callable[..., object]] = {
    "linear": lambda on: nn.functional.linear(on(2, 5), on(4, 4)),
    "bias of a linear": lambda on: nn.functional.linear(on(2, 4), on(4, 4), on(3)),
    "linear without a matrix": lambda on: nn.functional.linear(on(2, 4), on(4), on(3)),
    "layer norm": lambda on: nn.functional.layer_norm(on(2, 5), [4]),
    "weight of a layer norm": lambda on: nn.functional.layer_norm(on(2, 4), [4], on(5)),
    "group norm": lambda on: nn.functional.group_norm(on(2, 4, 3), 2, on(3)),
    "bias of a convolution": lambda on: nn.functional.conv2d(on(1, 3, 4, 4), on(2, 3, 3, 3), on(3)),
    "groups of a convolution": lambda on: nn.functional.conv2d(on(1, 4, 4, 4), on(3, 2, 3, 3), groups=2),
    "softmax": lambda on: on(2, 3).softmax(4),
    "index_select": lambda on: on(2, 3).index_select(0, on(2, 2).long()),
    "index_put_": lambda on: on(2, 3).index_put_((on(2).long(),), on(4)),
    "mask": lambda on: on(1, 4).index_put_((on(4, 4) > 0,), on()),
    "index_add_": lambda on: on(1, 1).index_add_(0, on(2).long(), on(2, 4)),
    "types of a product": lambda on: on(2, 3) @ on(3, 2).bfloat16(),
    "types of a sum": lambda on: torch.addmm(on(2), on(2, 3), on(3, 2).bfloat16()),
    "types of index_add_": lambda on: on(2, 2).index_add_(0, on(2).long(), on(2, 2).bfloat16()),
    "types of a layer norm": lambda on: nn.functional.layer_norm(on(2, 4), [4], on(4).bfloat16()),
    "types of a loss": lambda on: nn.functional.binary_cross_entropy(on(2, 4), on(2, 4).bfloat16()),
    "an expanded tensor": lambda on: on(1, 4).expand(3, 4).add_(1),
    "expanded tensors": lambda on: torch._foreach_mul_([on(1, 4).expand(3, 4)], 2.0),
    "the rows before": lambda on: _apply_to(on(4, 3), lambda rows: rows[1:].add_(rows[:-1])),
    "its transpose": lambda on: _apply_to(on(3, 3), lambda matrix: matrix.mul_(matrix.t())),
    "pairs of rows": lambda on: _apply_to(
        on(4, 3), lambda rows: torch._foreach_mul_([on(3), rows[1:]], [on(3), rows[:-1]])
    ),
    "a scale among the changed": lambda on: _apply_to(on(4), lambda row: torch._foreach_mul_([row], row[1])),
    "an output before its input": lambda on: _apply_to(on(4, 3), lambda rows: torch.exp(rows[1:], out=rows[:-1])),
    "an output that is the input": lambda on: _apply_to(on(3, 3), lambda m: torch.gather(m, 0, on(3, 3).long(), out=m)),
    "add_": lambda on: on(3).add_(on(2, 3)),
    "product": lambda on: on(2, 3) @ on(2, 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_where_the_script_calls_the_operator(xla: Any, name: str) -> None:
    def message(where: str) -> str:
        with pytest.raises((RuntimeError, IndexError)) as raised:
            REFUSED[name](lambda *shape: torch.zeros(shape).to(where))
        return f"{type(raised.value).__name__}: {raised.value}"

    assert message("xla") == message("cpu")


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.smooth_l1_loss, nn.functional.soft_margin_loss])
@pytest.mark.parametrize("types", [(torch.float16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_loss_of_two_types_is_that_of_the_cpu(xla: Any, loss: Any, types: tuple[torch.dtype, torch.dtype]) -> None:
    def results(where: str) -> tuple[torch.Tensor, torch.Tensor]:
        value = torch.arange(6, dtype=types[0]).to(where).requires_grad_()
        result = loss(value, torch.ones(6, dtype=types[1]).to(where))
        result.backward()
        assert value.grad is not None
        return result.detach().cpu(), value.grad.cpu()

    for found, expected in zip(results("xla"), results("cpu"), strict=True):
        assert found.dtype is expected.dtype
        assert found.equal(expected)


def test_views_that_do_not_overlap_are_changed_in_the_graph(xla: Any) -> None:
    value = torch.arange(12.0).view(3, 4).to("xla")
    value[0].add_(value[1])
    value[:, 0].add_(value[:, 1])
    value.mul_(value)
    assert value.tolist() == [[100.0, 36.0, 64.0, 100.0], [81.0, 25.0, 36.0, 49.0], [289.0, 81.0, 100.0, 121.0]]


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(value).masked_fill(mask, -1.0)
        return result


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_module_moves_and_has_the_results_and_errors_of_the_cpu(xla: Any) -> None:
    torch.manual_seed(1)
    module = torch.jit.script(Scripted())
    values = [(torch.ones(2, width), torch.eye(2, columns).bool()) for width, columns in ((4, 3), (5, 3), (4, 2))]

    def results(where: str) -> list[str]:
        module.to(where)
        found = []
        for value, mask in values:
            try:
                found.append(str(module(value.to(where), mask.to(where)).tolist()))
            except RuntimeError as error:
                found.append(str(error))
        return found

    assert results("cpu") == results("xla") == results("cpu")


def test_an_output_in_the_memory_of_an_argument_has_the_values_of_the_cpu(xla: Any) -> None:
    def values(where: str) -> list[Any]:
        matrix = torch.arange(16.0).view(4, 4).to(where)
        torch.sum(matrix, 0, out=matrix[1])
        torch.cumsum(matrix, 0, out=matrix)
        torch.mm(matrix, matrix.clone(), out=matrix)
        return [matrix.tolist()]

    assert values("xla") == values("cpu")


def test_a_replayed_step_refuses_a_view_that_overlaps_at_its_new_offset(xla: Any) -> None:
    def step(offset: int) -> float:
        value = torch.arange(16.0).to("xla")
        other = value[offset : offset + 4] * 1
        value[1:5].add_(value[offset : offset + 4])
        result = (other + value[1:5]) * 2
        xla.flush_all("Test")
        return float(result.sum())

    assert [step(offset) for offset in (8, 8, 8, 8, 7, 8, 8)] == [172.0] * 4 + [156.0, 172.0, 172.0]
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        step(3)


def test_a_failed_execution_leaves_no_value_and_says_so(xla: Any, executor: Any) -> None:
    index = torch.tensor([9]).to("xla")
    value = torch.ones(3).to("xla")
    used = buffers.account_of(xla.cores[0]).total_bytes
    result = value.gather(0, index) + 1
    with pytest.raises(RuntimeError):
        xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_ERR]
    no_value = "this tensor has no value: the execution that should have computed it failed"
    with pytest.raises(RuntimeError, match=no_value):
        result.cpu()
    assert value.tolist() == [1.0] * 3
    del result
    assert buffers.account_of(xla.cores[0]).by_field()["tensors_bytes"] <= used


def test_a_time_out_ends_an_execution_between_two_operators(
    xla: Any, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    now_seconds, lasts_seconds = 0.0, 599.0
    monkeypatch.setattr(deadline, "clock", lambda: now_seconds)
    executor.policy = ExecutionPolicy.from_environment({"NEURON_RT_EXEC_TIMEOUT": "1200"})
    with torch.library._scoped_library("deadline", "FRAGMENT") as library:
        library.define("slow(Tensor x, str name) -> Tensor")

        def slow(x: torch.Tensor, name: str) -> torch.Tensor:
            nonlocal now_seconds
            ran.append(name)
            now_seconds += lasts_seconds
            return x + 1

        library.impl("slow", slow, "CPU")
        library.impl("slow", lambda x, name: torch.empty_like(x), "Meta")
        for attempt in range(3):  # interpreted, then generated
            kept = torch.zeros(2).to("xla")
            for name in ("first", "second"):
                kept = torch.ops.deadline.slow(kept, name)
            if attempt < 2:
                xla.flush_all("Test")
                continue
            lasts_seconds = 1201.0
            inference_timeout = r"^NRT_TIMEOUT\(5\): .*inference timeout \(1200000 ms\) on Neuron Device 0 NC 0"
            with pytest.raises(ExecutionFailed, match=inference_timeout):
                xla.flush_all("Test")
    assert ran == ["first", "second"] * 2 + ["first"]
    assert executor.monitor.statuses[-1] == NrtStatus.TIMEOUT
    with pytest.raises(RuntimeError, match=r"no value: .*NRT_TIMEOUT"):
        kept.tolist()
    assert (torch.zeros(2).to("xla") + 1).tolist() == [1.0, 1.0]


def on_device(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device="xla", **options)


def two_element_types() -> None:
    narrow = (on_device(2, 3) @ on_device(3, 4)).bfloat16() @ on_device(4, 5).bfloat16()
    narrow.cpu()


def attention(*, is_trained: bool) -> list[torch.Tensor]:
    inputs = [on_device(2, 3, 5, 8, requires_grad=is_trained) for _ in range(3)]
    query, key, value = inputs
    result = nn.functional.scaled_dot_product_attention(query, key, value)
    if is_trained:
        result.sum().backward()
    return [*inputs, result]


def convolution() -> object:
    layer = nn.Conv2d(3, 8, 3).to("xla")
    layer(on_device(5, 3, 8, 8)).sum().backward()
    return layer


PRODUCT = 2 * (2 * 3) * 5 * 5 * 8  # of the scores of attention, and of the values with them


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: attention(is_trained=False), {"float32": 2 * PRODUCT}),
        # Backward computes the scores again, and four products more.
        (lambda: attention(is_trained=True), {"float32": 7 * PRODUCT}),
        (two_element_types, {"float32": 48, "bfloat16": 80}),
        # Forward, and backward for the weights: 5 * 8 pictures of 6 x 6, each element of 3 * 3 * 3.
        (convolution, {"float32": 2 * 2 * (5 * 8 * 36 * 27)}),
    ],
    ids=["attention", "attention backward", "two element types", "convolution"],
)
def test_flops_are_counted_by_element_type(xla: Any, compute: Callable[[], object], expected: dict[str, int]) -> None:
    executor = device_registration.executor()
    kept = compute()  # an operator that nobody has verified runs at once the first time
    xla.flush_all("Test")
    before = executor.work().flops_by_dtype
    kept = compute()
    xla.flush_all("Test")
    del kept
    assert {dtype: n for dtype, n in (executor.work().flops_by_dtype - before).items() if n} == expected


def test_what_forgotten_programs_did_stays_counted(xla: Any) -> None:
    executor = device_registration.executor()
    xla.flush_all("Test")
    left, right = on_device(3, 4), on_device(4, 5)
    xla.flush_all("Test")
    before = executor.work()
    (left @ right).cpu()
    after = executor.work()
    assert after.flops_by_dtype["float32"] - before.flops_by_dtype["float32"] == 120
    assert after.tensors_total - before.tensors_total == 3
    assert after.moved_bytes - before.moved_bytes == 4 * (12 + 20 + 15)
    forget_programs(executor)
    assert executor.work() == after
