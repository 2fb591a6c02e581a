"""Every operator of torch's operator database against the CPU: forward, backward, shapes, strides, types, bits.

With NEURONTOOLS_WRITE_DOCS=1, and all parts in one process, the list of covered operators in docs/operators.md is
written anew; else it is compared.
With NEURONTOOLS_ALL_SAMPLES=1 up to 64 samples of every element type are compared, which takes long; else a few.
"""

from __future__ import annotations

import gc
import os
import random
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.operators.operator import operators, verified_names
from tests.harness.paths import ROOT
from tests.harness.seeding import seed

ALL_SAMPLES = os.environ.get("NEURONTOOLS_ALL_SAMPLES") == "1"
SEED = 1234  # what torch's own tests seed their samples with
FEW_TYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)
_MORE = "float64 float16 uint8 int32 int16 int8 bool complex128".split()
MORE_TYPES = tuple(getattr(torch, name) for name in _MORE)
TYPES = (*FEW_TYPES, *MORE_TYPES) if ALL_SAMPLES else FEW_TYPES

# Not compared at all, and why.
_EMPTY = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
SKIPPED = {
    **dict.fromkeys(_EMPTY, "its values are whatever was in memory"),
    **dict.fromkeys(["to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm"], "sparse tensors are refused"),
    "tensor_split": "torch wants its indices on the CPU, on every device",
}
# Not the same bits, and why; compared with a tolerance.
CLOSE = {
    "linalg.lstsq": "LAPACK gets its operands in other strides",
    "nn.functional.linear_cross_entropy": "torch splits the work differently on accelerators (bfloat16)",
}


# Run at once, and why; besides those whose results' sizes depend on values.
def aten(names: str) -> frozenset[str]:
    return frozenset("aten::" + name for name in names.split())


WITHOUT_META = aten(
    "_ctc_loss_backward _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors copysign.Scalar "
    "histogram.bins_tensor _logcumsumexp fractional_max_pool3d_backward geqrf histogram.bin_ct "
    "multi_margin_loss_backward multilabel_margin_loss_backward"
)
RESIZING = aten("arange.start_out eye.m_out mul.out")  # of torch's own composites
OF_CONJUGATES = aten("bmm clone copy_ linalg_solve_triangular mm")


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
    seed(0)
    memo: dict[int, torch.Tensor] = {}
    first, rest, named = tree_map(
        lambda v: moved(v, where, memo), (sample.input, list(sample.args), dict(sample.kwargs))
    )
    result = op(first, *rest, **named)
    differentiable = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if differentiable:
        sum((t.abs() if t.is_complex() else t).sum() for t in differentiable).backward()  # type: ignore[union-attr]
    return result, [t.grad for t in memo.values() if t.requires_grad]


def compare(expected: Any, got: Any, op: Any, names_device: bool = True) -> None:
    if not isinstance(expected, torch.Tensor):
        assert type(expected) is type(got) or isinstance(expected, (int, float, bool))
        return
    assert got.device.type == "xla" or not expected.dim() or not names_device
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.numel():  # of a dimension of one element torch's kernels leave the stride open
        felt = [(a, b) for n, a, b in zip(got.shape, got.stride(), expected.stride(), strict=True) if n > 1]
        assert [a for a, _ in felt] == [b for _, b in felt]
    value = got.detach().cpu().resolve_conj().resolve_neg()
    expected = expected.detach().resolve_conj().resolve_neg()
    if expected.dtype is torch.complex32:  # torch can't compare these
        expected, value = expected.to(torch.complex64), value.to(torch.complex64)
    if op.name in CLOSE:
        tolerance = 4e-2 if expected.dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        return
    assert torch.equal(value.isnan(), expected.isnan())
    assert torch.equal(value.nan_to_num(), expected.nan_to_num())


def seeded(generator: Iterable[Any]) -> Iterator[Any]:
    """What it makes, each sample with the same random numbers."""
    made = iter(generator)
    while True:
        seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            yield next(made)
        except StopIteration:
            return


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    gradients = op.supports_autograd and (
        dtype is torch.float32 or (ALL_SAMPLES and dtype in op.supported_backward_dtypes("cpu"))
    )
    try:
        # Not `op.sample_inputs`, which seeds with `torch.manual_seed` and looks through the stack for a unittest.
        listed = list(seeded(op.sample_inputs_func(op, "cpu", dtype, gradients)))
    except Exception:
        return  # torch can't make samples of this type without optional packages
    most = 64 if ALL_SAMPLES else 3 if dtype is torch.float32 else 1
    yield from listed[:: max(1, len(listed) // max(3, most))][:most]


@cache
def database() -> dict[str, Any]:
    """Torch's operator database; to import it takes longer than to import torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    gc.collect()
    gc.freeze()  # so large that every later run of the garbage collector would take a third of a second
    return {name_of(op): op for op in op_db}


PARTS = 40
"""The operators are shared out among so many tests: collection does not import the database to know their names."""

VERIFIED = ROOT / "neurontools" / "runtime" / "operators" / "verified_operators.txt"
IS_WRITING = os.environ.get("NEURONTOOLS_WRITE_DOCS") == "1"


@pytest.fixture(scope="module")
def verified(set_up_device: None) -> Iterator[set[str]]:
    """The operators that were recorded, executed and compared; written to the runtime's list where that is asked for.

    While it is written everything is recorded, so that nothing is verified by the runtime itself instead.
    """
    names: set[str] = set()
    if IS_WRITING:
        for name in operators.names:
            operators.get(name).trusted = True
    yield names
    if IS_WRITING:
        VERIFIED.write_text("\n".join(sorted(names)) + "\n")


def executed_operators() -> set[str]:
    made = executor()
    names: set[str] = set()
    for loaded in made.programs.values():
        names |= {instruction.operator.name for instruction in loaded.program.compiled.instructions}
        made.unload(loaded)
    made.programs.clear()
    return {name for name in names if name.startswith("aten::")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [pytest.param(n, marks=[] if n % 12 == 0 else pytest.mark.slow) for n in range(PARTS)])
def test_operators(xla: Any, part: int, verified: set[str]) -> None:
    names = [name for name in database() if name not in SKIPPED][part::PARTS]
    assert len(names) > 10
    different: dict[str, str] = {}
    for name in names:
        before = dict(metrics.counters)
        try:
            compare_with_cpu(database()[name])
        except Exception as error:
            different[name] = f"{type(error).__name__}: {error}"
        verified |= executed_operators()
        at_once = {n for n, count in metrics.counters.items() if n.startswith("aten::") and count != before.get(n)}
        unexpected = at_once - WITHOUT_META - RESIZING - OF_CONJUGATES
        if run_eager := {name for name in unexpected if not operators.get(name).dynamic}:
            different[name] = f"{sorted(run_eager)} ran outside of graphs"
    assert different == {}


def compare_with_cpu(op: Any) -> None:
    for dtype in TYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype):
            try:
                expected, gradients = computed(op, sample, "cpu")
            except Exception:
                continue  # what the CPU refuses is nothing to compare with
            got, got_gradients = computed(op, sample, "xla")
            names_device = any(
                isinstance(v, (torch.Tensor, torch.device)) or v == "cpu"
                for v in tree_leaves((sample.input, sample.args, sample.kwargs))
            )
            for a, b in zip(tree_leaves(expected), tree_leaves(got), strict=True):
                compare(a, b, op, names_device)
            for a, b in zip(gradients, got_gradients, strict=True):
                assert (a is None) == (b is None)
                if a is not None and a.layout is torch.strided:
                    compare(a, b, op)


def with_lists_of_now(document: str) -> str:
    """The document with its lists as they are now, and how many operators are in the last two."""

    def listed(names: Iterable[str]) -> str:
        return "".join(f"* `{name}`\n" for name in sorted(names))

    def explained(reasons: dict[str, str]) -> str:
        return "".join(f"* `{name}`: {why}\n" for name, why in sorted(reasons.items()))

    all_names = {name for name in operators.names if name.startswith("aten::")}
    at_once = {name for name in all_names if operators.get(name).dynamic and name != "aten::index.Tensor"}
    recorded = all_names - at_once - WITHOUT_META
    compared = recorded & verified_names()
    others = {name for name in recorded - compared if not operators.get(name).trusted}
    lists = [explained(CLOSE), explained(SKIPPED), *map(listed, (at_once, WITHOUT_META, compared, others))]
    counts = [f"({len(compared)})", f"({len(others)})"]
    document = re.sub(r"(^\* .*\n)+", lambda _: lists.pop(0), document, flags=re.MULTILINE)
    return re.sub(r"\(\d+\)$", lambda _: counts.pop(0), document, flags=re.MULTILINE)


OF_A_NEW_PROCESS = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from neurontools.runtime.launch.install import install_runtime
install_runtime()
sys.path.insert(0, sys.argv[1])
from test_operators import with_lists_of_now
print(with_lists_of_now(Path(sys.argv[2]).read_text()), end="")
"""


@pytest.mark.slow
def test_the_documented_list(run_python: Any) -> None:
    """In a process of its own, where no test has used other operators."""
    path = ROOT / "docs" / "operators.md"
    run = run_python("-c", OF_A_NEW_PROCESS, str(Path(__file__).parent), str(path))
    assert run.returncode == 0, run.stderr
    if IS_WRITING:
        path.write_text(run.stdout)
    assert path.read_text() == run.stdout
