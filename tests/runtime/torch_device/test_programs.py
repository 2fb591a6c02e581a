"""Random programs: recorded and run they give what the CPU gives, and every byte comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neurontools.runtime.tensors.buffer_table import buffers
from tests.harness.examples import examples
from tests.harness.seeding import seed

Operation = Callable[[list[torch.Tensor], int, int, int], None]


def binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, j: int, _n: int) -> None:
        a, b = values[i % len(values)], values[j % len(values)]
        if a.shape == b.shape:
            values.append(function(a, b))

    return apply


def unary(function: Callable[[torch.Tensor, int], torch.Tensor]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, _j: int, n: int) -> None:
        values.append(function(values[i % len(values)], n))

    return apply


def in_place(function: Callable[[torch.Tensor, int], object]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, _j: int, n: int) -> None:
        value = values[i % len(values)]
        if not value._is_view() or value.stride(-1) != 0:
            function(value, n)

    return apply


def drop(values: list[torch.Tensor], i: int, _j: int, _n: int) -> None:
    if len(values) > 1:
        del values[i % len(values)]


OPERATIONS: dict[str, Operation] = {
    "add": binary(torch.add),
    "mul": binary(torch.mul),
    "maximum": binary(torch.maximum),
    "tanh": unary(lambda v, _n: v.tanh()),
    "scale": unary(lambda v, n: v * (n / 3)),
    "shift": unary(lambda v, n: v + n),
    "product": unary(lambda v, _n: v @ v.t()),
    "softmax": unary(lambda v, _n: v.softmax(-1)),
    "cumsum": unary(lambda v, _n: v.cumsum(0)),
    "transpose": unary(lambda v, _n: v.t()),
    "row": unary(lambda v, n: v[n % v.shape[0]].unsqueeze(0)),
    "columns": unary(lambda v, n: v[:, n % v.shape[1] :]),
    "contiguous": unary(lambda v, _n: v.contiguous()),
    "bfloat16": unary(lambda v, _n: v.bfloat16().float()),
    "noise": unary(lambda v, _n: v + torch.rand_like(v)),
    "add_": in_place(lambda v, n: v.add_(n)),
    "sigmoid_": in_place(lambda v, _n: v.sigmoid_()),
    "fill_row": in_place(lambda v, n: v[n % v.shape[0]].fill_(n)),
    "zero_": in_place(lambda v, _n: v.zero_()),
    "drop": drop,
}
STEP = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9), st.integers(-3, 5))
QUIET = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(where: str, steps: list[tuple[str, int, int, int]], marks: set[int], mark: Callable[[], None]) -> list[Any]:
    seed(5)
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(3, 4, generator=generator).to(where), torch.randn(4, 4, generator=generator).to(where)]
    seed(6)
    for number, (name, i, j, n) in enumerate(steps):
        OPERATIONS[name](values, i, j, n)
        if number in marks:
            mark()
    return [(v.shape, v.stride(), v.cpu()) for v in values]


@QUIET
@given(st.lists(STEP, max_size=25), st.sets(st.integers(0, 24)))
def test_random_programs_equal_the_cpu_and_give_all_bytes_back(
    xla: Any, steps: list[tuple[str, int, int, int]], marks: set[int]
) -> None:
    gc.collect()
    xla.flush_all("Test")
    before = buffers.account_of(xla.cores[0]).by_field()["tensors_bytes"]
    expected = run("cpu", steps, marks, lambda: None)
    got = run("xla", steps, marks, lambda: xla.flush_all("Test"))
    for (shape, stride, value), (got_shape, got_stride, got_value) in zip(expected, got, strict=True):
        assert (got_shape, got_stride) == (shape, stride)
        assert torch.equal(value.nan_to_num(), got_value.nan_to_num())
    xla.flush_all("Test")
    assert buffers.account_of(xla.cores[0]).by_field()["tensors_bytes"] == before


class Accounting(RuleBasedStateMachine):
    """Tensors come and go; the accounted bytes are those of the storages that live and have a value."""

    def __init__(self) -> None:
        super().__init__()
        from neurontools.runtime.tensors.device import device

        gc.collect()
        device.flush_all("Test")
        self.device = device
        self.before = buffers.account_of(device.cores[0]).by_field()
        self.tensors: list[torch.Tensor] = []

    @rule(size=st.integers(0, 2000), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]))
    def move(self, size: int, dtype: torch.dtype) -> None:
        self.tensors.append(torch.zeros(size, dtype=dtype).to("xla"))

    @rule(index=st.integers(0, 9))
    def view(self, index: int) -> None:
        if self.tensors:
            self.tensors.append(self.tensors[index % len(self.tensors)][1:])

    @rule(index=st.integers(0, 9))
    def compute(self, index: int) -> None:
        if self.tensors:
            self.tensors.append(self.tensors[index % len(self.tensors)].logical_not())

    @rule(index=st.integers(0, 9))
    def drop(self, index: int) -> None:
        if self.tensors:
            del self.tensors[index % len(self.tensors)]

    @rule(index=st.integers(0, 9))
    def parameter(self, index: int) -> None:
        if self.tensors and self.tensors[index % len(self.tensors)].is_floating_point():
            module = torch.nn.Module()
            module.weight = torch.nn.Parameter(self.tensors[index % len(self.tensors)])
            self.tensors.append(module.weight.detach())

    @rule()
    def execute(self) -> None:
        self.device.flush_all("Test")

    @invariant()
    def bytes_are_those_of_living_storages(self) -> None:
        if self.device.cores[0].graph.buffers:
            return  # a pending graph holds on to dead inputs
        now = buffers.account_of(self.device.cores[0]).by_field()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors}
        known = ("constants_bytes", "tensors_bytes")
        assert sum(now[k] - self.before[k] for k in known) == sum(storages.values())


def test_accounting(xla: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Accounting, settings=settings(max_examples=examples(40), stateful_step_count=25))
