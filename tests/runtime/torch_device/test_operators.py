"""Every operator of torch's operator database against the CPU: forward, backward, shapes, strides, types, bits.

With NEURONTOOLS_WRITE_DOCS=1 the list of covered operators in docs/operators.md is written anew; else it is compared.
With NEURONTOOLS_ALL_SAMPLES=1 up to 64 samples of every element type are compared, which takes long; else a few.
"""

from __future__ import annotations

import gc
import os
import random
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

from tests.harness.seeding import seed

ROOT = Path(__file__).parents[3]
ALL_SAMPLES = os.environ.get("NEURONTOOLS_ALL_SAMPLES") == "1"
SEED = 1234  # what torch's own tests seed their samples with
FEW_TYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)
MORE_TYPES = (
    torch.float64,
    torch.float16,
    torch.uint8,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.bool,
    torch.complex128,
)
TYPES = (*FEW_TYPES, *MORE_TYPES) if ALL_SAMPLES else FEW_TYPES

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
# Not the same bits, and why; compared with a tolerance.
CLOSE = {
    "linalg.lstsq": "LAPACK gets its operands in other strides",
    "nn.functional.linear_cross_entropy": "torch splits the work differently on accelerators (bfloat16)",
}
# Run at once, and why; besides those whose results' sizes depend on values.
WITHOUT_META = frozenset(
    "aten::" + name
    for name in """_ctc_loss_backward _histogramdd_bin_edges _histogramdd_from_bin_cts
 _histogramdd_from_bin_tensors copysign.Scalar histogram.bins_tensor _logcumsumexp
 fractional_max_pool3d_backward geqrf histogram.bin_ct multi_margin_loss_backward
 multilabel_margin_loss_backward""".split()
)
RESIZING = frozenset(
    "aten::" + name for name in "arange.start_out eye.m_out mul.out".split()
)  # of torch's own composites
OF_CONJUGATES = frozenset("aten::" + name for name in "bmm clone copy_ linalg_solve_triangular mm".split())


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


# The names, so that not every process that collects tests imports the database.
DATABASE_NAMES = Path(__file__).parent / "operator_names.txt"
OPERATORS = [name for name in DATABASE_NAMES.read_text().split() if name not in SKIPPED]
VERIFIED = ROOT / "neurontools" / "runtime" / "operators" / "verified_operators.txt"
IS_WRITING = os.environ.get("NEURONTOOLS_WRITE_DOCS") == "1"


@pytest.fixture(scope="module")
def verified(set_up_device: None) -> Iterator[set[str]]:
    """The operators that were recorded, executed and compared; written to the runtime's list where that is asked for.

    While it is written everything is recorded, so that nothing is verified by the runtime itself instead.
    """
    from neurontools.runtime.operators.operator import operators

    names: set[str] = set()
    if IS_WRITING:
        for operator in operators.by_name.values():
            operator.trusted = True
    yield names
    if IS_WRITING:
        VERIFIED.write_text("\n".join(sorted(names)) + "\n")


def executed_operators() -> set[str]:
    from neurontools.runtime.launch.setup import executor

    made = executor()
    names: set[str] = set()
    for loaded in made.programs.values():
        names |= {instruction.operator.name for instruction in loaded.program.compiled.instructions}
        made._unload(loaded)
    made.programs.clear()
    return {name for name in names if name.startswith("aten::")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(xla: Any, name: str, verified: set[str]) -> None:
    from neurontools.runtime.counting.metrics import metrics
    from neurontools.runtime.operators.operator import operators

    before = dict(metrics.counters)
    compare_with_cpu(database()[name])
    verified |= executed_operators()
    at_once = {n for n, count in metrics.counters.items() if n.startswith("aten::") and count != before.get(n)}
    unexpected = at_once - WITHOUT_META - RESIZING - OF_CONJUGATES
    assert {name for name in unexpected if not operators.get(name).dynamic} == set()


def test_every_operator_of_the_database_is_compared() -> None:
    if IS_WRITING:
        DATABASE_NAMES.write_text("\n".join(database()) + "\n")
    assert DATABASE_NAMES.read_text().split() == list(database())


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


def operator_list() -> str:
    from neurontools.runtime.operators.operator import operators, verified_names

    listed = {name: o.dynamic and name != "aten::index.Tensor" for name, o in operators.by_name.items()}
    known = verified_names()
    recorded = {n for n, is_dynamic in listed.items() if n.startswith("aten::") and not is_dynamic} - WITHOUT_META
    compared = sorted(recorded & known)
    others = sorted(name for name in recorded - known if not operators.by_name[name].trusted)
    at_once = sorted(name for name, at_once in listed.items() if name.startswith("aten::") and at_once)
    return "\n".join(
        [
            "# Operators of the simulated device",
            "",
            "Written by `tests/runtime/torch_device/test_operators.py`, which compares the entries of torch's operator",
            "database (OpInfo) with the CPU: forward, backward, shapes, strides, types and bits. Operators made of",
            "others (CompositeImplicitAutograd) are covered through them, operators that change their arguments and",
            "lists (`_foreach_…`) are recorded too. What runs on the host at once, outside of graphs, is counted under",
            "its name in `torch_xla.debug.metrics`; so is an operator whose meta kernel turns out to be wrong.",
            "",
            "## Not the bits of the CPU",
            "",
            *(f"* `{name}`: {why}" for name, why in sorted(CLOSE.items())),
            "",
            "## Not compared",
            "",
            *(f"* `{name}`: {why}" for name, why in sorted(SKIPPED.items())),
            "",
            "## Run at once",
            "",
            "Because the size of the result depends on values (also `aten::index.Tensor` with a mask):",
            "",
            *(f"* `{name}`" for name in at_once),
            "",
            "Because torch has no meta kernel that says what comes out:",
            "",
            *(f"* `{name}`" for name in sorted(WITHOUT_META)),
            "",
            "Operators on conjugate and negative views of complex tensors, with `out=` tensors of another size than",
            "the result, and with a `torch.Generator` of the script's own run at once too.",
            "",
            f"## Recorded, and compared with the CPU ({len(compared)})",
            "",
            *(f"* `{name}`" for name in compared),
            "",
            f"## Recorded after a first call at once ({len(others)})",
            "",
            "No entry of the database leads to them. The first call of each kind is compared by the runtime itself.",
            "",
            *(f"* `{name}`" for name in others),
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
from neurontools.runtime.launch.install import install
install()
from test_operators import operator_list
print(operator_list(), end="")
"""
    run = run_python("-c", program)
    assert run.returncode == 0, run.stderr
    path = ROOT / "docs" / "operators.md"
    if IS_WRITING:
        path.parent.mkdir(exist_ok=True)
        path.write_text(run.stdout)
    assert path.read_text() == run.stdout
