"""The workloads of neuron-diag in this process: what they write of right devices and of wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate, count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.harness.pictures import is_as_stored

GOLDEN = Path(__file__).parent / "golden/diag_workloads.txt"
SIZES = {"hbm_bytes": 4 << 20, "transfer_bytes": 100, "speed_size": 16, "rounds": 2}
SUSTAINED = {"tests": ["matmul"], "seconds": 3000, "slow_factor": 1.5, "load_type": "bfloat16"}


@pytest.fixture
def workloads(xla: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Both programs. Each look at their clock takes a second longer than the one before."""
    from neurontools.diagnose import sustained_workload, workload

    for module in (workload, sustained_workload):
        seconds = accumulate(count(1))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=seconds.__next__))
    return workload, sustained_workload


def test_right_devices(workloads: tuple[ModuleType, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    workload, sustained = workloads
    workload.main({**SIZES, "cores": [0, 1], "tests": [*workload.TESTS, "speed"]})
    sustained.main({**SIZES, **SUSTAINED, "cores": [0, 1]})
    sustained.main({**SIZES, **SUSTAINED, "cores": [1], "seconds": 0})
    assert is_as_stored(capsys.readouterr().out, GOLDEN), "look at the difference; then UPDATE_GOLDEN=1 writes it"


class WrongOperator(TorchDispatchMode):
    """Changes the first result of an operator that has this type."""

    def __init__(self, operator: str, dtype: torch.dtype, change: Callable[[torch.Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator, self._dtype, self._change, self._is_over = operator, dtype, change, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if not self._is_over and function.name() == f"aten::{self._operator}" and found.dtype is self._dtype:
            self._is_over = True
            self._change(found)
        return found


def adds(amount: float, at: int = 5) -> Callable[[torch.Tensor], object]:
    return lambda found: found.view(-1)[at].add_(amount)


def fills(value: float, step: int = 1) -> Callable[[torch.Tensor], object]:
    return lambda found: found[::step].fill_(value)


def fails(text: str) -> Callable[[torch.Tensor], object]:
    def fail(_found: torch.Tensor) -> None:
        raise RuntimeError(text)

    return fail


F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32
UP = 1 + 2**-7  # the bfloat16 after 1
WRONG = [
    ("matmul", "mm", F32, adds(1), "fp32 product: 1 of 16384 results are wrong; result 5 is -42.0, not -43.0"),
    ("matmul", "mm", F32, adds(float("nan")), "fp32 product: 1 of 16384 results are wrong; result 5 is nan, not -43.0"),
    ("matmul", "mm", BF16, adds(1), "bf16 product: 1 of 16384 results are wrong; result 5 is -42.0, not -43.0"),
    ("matmul", "mm", F32, fails("NRT_EXEC: 1\n2"), "NRT_EXEC: 1"),
    ("matmul", "mm", F32, fails("a" * 600), f"RuntimeError: {'a' * 486}"),
    ("matmul", "mm", F32, fails(""), "RuntimeError: "),
    (
        "convolution",
        "convolution",
        F32,
        adds(1),
        "convolution: 1 of 6144 results are wrong; result 5 is -2.0, not -3.0",
    ),
    ("random", "rand", F32, fills(0.6), "mean of uniform numbers is 0.600000, not 0.500000 within 0.005477"),
    ("random", "rand", F32, fills(0.5), "variance of uniform numbers is 0.000000, not 0.083333 within 0.001414"),
    ("random", "randn", F32, fills(1), "mean of normal numbers is 1.000000, not 0.000000 within 0.018974"),
    ("random", "randn", F32, fills(0), "variance of normal numbers is 0.000000, not 1.000000 within 0.026833"),
    (
        "random",
        "_to_copy",
        BF16,
        fills(UP, 2),
        "mean after stochastic rounding is 1.003906, not 1.001953 within 0.000064",
    ),
    ("random", "_to_copy", BF16, fills(UP, 4), "random numbers and stochastic rounding have the expected statistics"),
    ("random", "_to_copy", BF16, fills(1), "random numbers have the expected statistics; the stack rounds to nearest"),
    ("hbm", "clone", I32, adds(1), "pattern 0x00000000: 1 of 1048576 words are wrong"),
    ("hbm", "full", I32, adds(1), "pattern 0x00000000: 1 of 1048576 words are wrong"),
    ("hbm", "arange", I32, adds(1), "addresses as pattern: 1 of 1048576 results are wrong; result 5 is 6, not 5"),
    ("training", "mm", F32, adds(64), "training: the loss of step 1 is 89.7578125, not 87.525390625"),
    ("speed", "mm", F32, fails(" late\n2"), "late"),
    ("sustained", "mm", BF16, adds(1), "after 2 s: products under load: 16 results are wrong"),
]


@pytest.mark.parametrize(
    ("name", "operator", "dtype", "change", "reason"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG]
)
def test_wrong_devices(
    workloads: tuple[ModuleType, ModuleType],
    name: str,
    operator: str,
    dtype: torch.dtype,
    change: Callable[[torch.Tensor], object],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The device is the CPU."""
    workload, sustained = workloads
    monkeypatch.setattr(workload.xm, "xla_device", lambda _index: torch.device("cpu"))
    with WrongOperator(operator, dtype, change):
        if name == "sustained":
            sustained.main({**SIZES, **SUSTAINED, "cores": [3], "seconds": 0})
        else:
            workload.main({**SIZES, "cores": [3], "tests": [name]})
    begin, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert (begin["begin"], begin["core"], end["test"], end["core"]) == (name, 3, name, 3)
    assert end["outcome"] == ("pass" if end["reason"].startswith("random numbers") else "fail")
    assert end["reason"] == reason
