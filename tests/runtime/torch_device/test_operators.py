"""Every operator of torch's operator database against the CPU: forward, backward, shapes, strides, types, bits.

With NEURONTOOLS_WRITE_DOCS=1 the list of covered operators in docs/operators.md is written anew; else it is compared.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).parents[3]
TYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)

# Not compared at all, and why.
SKIPPED = {
    "empty": "its values are whatever was in memory",
    "empty_like": "its values are whatever was in memory",
    "empty_permuted": "its values are whatever was in memory",
    "empty_strided": "its values are whatever was in memory",
    "new_empty": "its values are whatever was in memory",
    "new_empty_strided": "its values are whatever was in memory",
    "to_sparse": "sparse tensors are refused",
    "sparse.mm.reduce": "sparse tensors are refused",
    "sparse.sampled_addmm": "sparse tensors are refused",
    "tensor_split": "torch wants its indices on the CPU, on every device",
}
# The same values, in other strides: torch's meta kernels announce them so, and copies cost less than they confuse.
OTHER_STRIDES = frozenset(
    [
        "svd_lowrank",
        "pca_lowrank",
        "linalg.svd",
        "nn.functional.max_unpool2d",
        "fft.hfft2",
        "fft.rfft2",
        "fft.rfftn",
        "linalg.eig",
        "linalg.lstsq",
    ]
)
# Not the same bits, and why; compared with a tolerance.
CLOSE = {
    "linalg.eig": "its eigenvectors lie in other strides, so backward sums in another order",
    "linalg.lstsq": "LAPACK gets its operands in other strides",
    "nn.functional.linear_cross_entropy": "torch splits the work differently on accelerators (bfloat16)",
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def moved(value: Any, where: str, memo: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            copy = value.detach().clone() if where == "cpu" else value.detach().to(where)
            memo[id(value)] = copy.requires_grad_(value.requires_grad)
        return memo[id(value)]
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(where)
    return value


def computed(op: Any, sample: Any, where: str) -> tuple[Any, list[torch.Tensor | None]]:
    torch.manual_seed(0)
    memo: dict[int, torch.Tensor] = {}
    first, rest, named = tree_map(
        lambda v: moved(v, where, memo), (sample.input, list(sample.args), dict(sample.kwargs))
    )
    result = op(first, *rest, **named)
    differentiable = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if differentiable:
        sum((t.abs() if t.is_complex() else t).sum() for t in differentiable).backward()  # type: ignore[union-attr]
    return result, [t.grad for t in memo.values() if t.requires_grad]


def compare(expected: Any, got: Any, op: Any) -> None:
    if not isinstance(expected, torch.Tensor):
        assert type(expected) is type(got) or isinstance(expected, (int, float, bool))
        return
    assert got.device.type == "xla" or not expected.dim()
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.numel() and op.name not in OTHER_STRIDES:
        assert got.stride() == expected.stride()
    value = got.detach().cpu().resolve_conj().resolve_neg()
    expected = expected.detach().resolve_conj().resolve_neg()
    if expected.dtype is torch.complex32:  # torch can't compare these
        expected, value = expected.to(torch.complex64), value.to(torch.complex64)
    if op.name in CLOSE:
        tolerance = 2e-2 if expected.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        return
    assert torch.equal(value.isnan(), expected.isnan())
    assert torch.equal(value.nan_to_num(), expected.nan_to_num())


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    gradients = dtype is torch.float32 and op.supports_autograd
    try:
        listed = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    except Exception:
        return  # torch can't make samples of this type without optional packages
    step = max(1, len(listed) // 3)
    yield from listed[::step][: 3 if dtype is torch.float32 else 1]


OPERATORS = [op for op in op_db if name_of(op) not in SKIPPED]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=name_of)
def test_operator(xla: Any, op: Any) -> None:
    for dtype in TYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype):
            try:
                expected, gradients = computed(op, sample, "cpu")
            except Exception:
                continue  # what the CPU refuses is nothing to compare with
            got, got_gradients = computed(op, sample, "xla")
            for a, b in zip(tree_leaves(expected), tree_leaves(got), strict=True):
                compare(a, b, op)
            for a, b in zip(gradients, got_gradients, strict=True):
                assert (a is None) == (b is None)
                if a is not None and a.layout is torch.strided:
                    compare(a, b, op)


def operator_list() -> str:
    from neurontools.runtime.operator import operators

    listed = {name: o.dynamic and name != "aten::index.Tensor" for name, o in operators.by_name.items()}
    recorded = sorted(name for name, at_once in listed.items() if name.startswith("aten::") and not at_once)
    at_once = sorted(name for name, at_once in listed.items() if name.startswith("aten::") and at_once)
    return "\n".join(
        [
            "# Operators of the simulated device",
            "",
            "Written by `tests/runtime/torch_device/test_operators.py`, which compares the entries of torch's operator",
            "database (OpInfo) with the CPU: forward, backward, shapes, strides, types and bits. Operators made of",
            "others (CompositeImplicitAutograd) are covered through them. An operator that is not listed and has a",
            "CPU kernel is recorded all the same; where torch has no meta kernel for it, or the size of its result",
            "depends on values, it runs on the host at once and is counted under its name in",
            "`torch_xla.debug.metrics`.",
            "",
            "## Not the bits or strides of the CPU",
            "",
            *(f"* `{name}`: {why}" for name, why in sorted(CLOSE.items())),
            "* `nn.LSTM`, `nn.GRU`: torch adds the biases of recurrent cells in another order on accelerators",
            *(f"* `{name}`: other strides, the same values" for name in sorted(OTHER_STRIDES)),
            "",
            "## Not compared",
            "",
            *(f"* `{name}`: {why}" for name, why in sorted(SKIPPED.items())),
            "",
            f"## Run at once ({len(at_once)}; also `aten::index.Tensor` with a mask)",
            "",
            *(f"* `{name}`" for name in at_once),
            "",
            f"## Recorded ({len(recorded)})",
            "",
            *(f"* `{name}`" for name in recorded),
            "",
        ]
    )


def test_the_documented_list(run_python: Any) -> None:
    """In a process of its own, where no test has used other operators."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import warnings
warnings.simplefilter("ignore")
from neurontools.runtime import launch
launch.install()
from test_operators import operator_list
print(operator_list(), end="")
"""
    run = run_python("-c", program)
    assert run.returncode == 0, run.stderr
    path = ROOT / "docs" / "operators.md"
    if os.environ.get("NEURONTOOLS_WRITE_DOCS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(run.stdout)
    assert path.read_text() == run.stdout
