"""What executions ask of a device: counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neurontools.runtime.execution.executor import Executor
from neurontools.runtime.launch import setup


@pytest.fixture
def executor(xla: Any) -> Executor:
    """That of this process, which has the device."""
    del xla
    return setup.executor()


@pytest.fixture
def flops(xla: Any, executor: Any) -> Any:
    """The FLOPs of what a function records, by element type."""

    def counted(compute: Any) -> dict[str, int]:
        compute()  # an operator that nobody has verified runs at once the first time
        xla.flush_all("Test")
        before = executor.work().flops_by_dtype
        compute()
        xla.flush_all("Test")
        return {dtype: count for dtype, count in (executor.work().flops_by_dtype - before).items() if count}

    return counted


def test_attention_is_counted_forward_and_backward(flops: Any) -> None:
    query, key, value = (torch.randn(2, 3, 5, 8, device="xla", requires_grad=True) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    product = 2 * (2 * 3) * 5 * 5 * 8
    assert flops(lambda: attention(query, key, value).detach().cpu()) == {"float32": 2 * product}
    # Backward computes the scores again, and four products more.
    assert flops(lambda: attention(query, key, value).sum().backward()) == {"float32": 7 * product}


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: torch.mv(torch.randn(4, 6, device="xla"), torch.randn(6, device="xla")).cpu(), 48),
        (lambda: torch.dot(torch.randn(6, device="xla"), torch.randn(6, device="xla")).cpu(), 12),
        (
            lambda: torch.addmv(
                torch.randn(4, device="xla"), torch.randn(4, 6, device="xla"), torch.randn(6, device="xla")
            ).cpu(),
            48,
        ),
        (
            lambda: torch.addbmm(
                torch.randn(4, 5, device="xla"), torch.randn(3, 4, 6, device="xla"), torch.randn(3, 6, 5, device="xla")
            ).cpu(),
            720,
        ),
    ],
)
def test_products_that_torch_has_no_formula_for_are_counted(flops: Any, compute: Any, expected: int) -> None:
    assert flops(compute) == {"float32": expected}


def test_each_element_type_is_counted_apart(flops: Any) -> None:
    def compute() -> None:
        wide = torch.randn(2, 3, device="xla") @ torch.randn(3, 4, device="xla")
        narrow = wide.bfloat16() @ torch.randn(4, 5, device="xla").bfloat16()
        narrow.cpu()

    assert flops(compute) == {"float32": 48, "bfloat16": 80}


def test_what_forgotten_programs_did_stays_counted(xla: Any, executor: Executor) -> None:
    xla.flush_all("Test")
    left, right = torch.randn(3, 4, device="xla"), torch.randn(4, 5, device="xla")
    xla.flush_all("Test")
    before = executor.work()
    (left @ right).cpu()
    after = executor.work()
    assert after.flops_by_dtype["float32"] - before.flops_by_dtype["float32"] == 120
    assert after.tensors_total - before.tensors_total == 3
    assert after.moved_bytes - before.moved_bytes == 4 * (12 + 20 + 15)
    for programs in list(executor.loaded.values()):
        for loaded in list(programs.values()):
            executor._unload(loaded)
    executor.programs.clear()
    assert executor.work() == after
