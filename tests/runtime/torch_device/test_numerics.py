"""Rounding, and what the compiler flags and variables do to a computation."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neurontools.runtime.programs import compiler_flags, rounding
from neurontools.runtime.programs.compiler_flags import CompilerFlags, InvalidCompilerFlags
from neurontools.runtime.programs.numerics import narrowed_types, stochastic_rounding

FLOATS = st.floats(width=32, allow_nan=False)


def tf32_of(value: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if bits & 0x7F800000 == 0x7F800000:
        return value
    rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & 0xFFFFE000
    (result,) = struct.unpack("<f", struct.pack("<I", rounded & 0xFFFFFFFF))
    return float(result)


@given(FLOATS)
def test_tf32_keeps_ten_bits_of_mantissa(value: float) -> None:
    assert rounding.to_tf32(torch.tensor([value])).item() == tf32_of(value)


@given(st.sampled_from(sorted(rounding.NEAREST)), st.lists(FLOATS, min_size=1, max_size=8))
def test_rounding_twice_is_rounding_once(name: str, values: list[float]) -> None:
    once = rounding.NEAREST[name](torch.tensor(values))
    assert torch.equal(rounding.NEAREST[name](once), once)
    assert once.dtype is torch.float32


def test_fp8_saturates_at_its_largest() -> None:
    assert rounding.to_fp8_e4m3(torch.tensor([1e9, -300.0, 0.3])).tolist() == [240.0, -240.0, 0.3125]


def test_stochastic_rounding_is_unbiased_reproducible_and_goes_to_neighbours() -> None:
    value = torch.full((200_000,), 1.0 + 3 / 1024)  # 3/8 of the way from 1.0 to the next bfloat16, 1.0078125
    first = rounding.stochastic_bf16(value, torch.Generator().manual_seed(1)).float()
    assert torch.equal(rounding.stochastic_bf16(value, torch.Generator().manual_seed(1)).float(), first)
    assert set(first.unique().tolist()) == {1.0, 1.0078125}
    assert abs((first > 1).float().mean().item() - 0.375) < 0.005
    special = torch.tensor([float("inf"), float("-inf"), 0.0, 1.0])
    assert rounding.stochastic_bf16(special, torch.Generator()).tolist() == special.tolist()
    assert rounding.stochastic_bf16(torch.tensor([float("nan")]), torch.Generator()).isnan().item()


@pytest.mark.parametrize(
    ("environment", "narrowed", "stochastic"),
    [
        ({}, {}, False),
        ({"XLA_USE_BF16": "1"}, {torch.float32: torch.bfloat16, torch.float64: torch.bfloat16}, True),
        ({"XLA_DOWNCAST_BF16": "1"}, {torch.float32: torch.bfloat16, torch.float64: torch.float32}, True),
        ({"XLA_USE_BF16": "1", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0"}, None, False),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}, {}, True),
    ],
)
def test_variables(environment: dict[str, str], narrowed: object, stochastic: bool) -> None:
    if narrowed is not None:
        assert narrowed_types(environment) == narrowed
    assert stochastic_rounding(environment) is stochastic


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", CompilerFlags()),
        ("--auto-cast=none", CompilerFlags(passed_on=("--auto-cast", "none"))),
        (
            "--auto-cast all --auto-cast-type fp8_e4m3",
            CompilerFlags("all", "fp8_e4m3", passed_on=("--auto-cast", "all", "--auto-cast-type", "fp8_e4m3")),
        ),
        (
            "--model-type transformer -O3 --target inf2 -lnc=1",
            CompilerFlags(
                model_type="transformer",
                optlevel=3,
                target="inf2",
                logical_neuroncore_config=1,
                passed_on=(
                    *("--model-type", "transformer", "--optlevel", "3"),
                    *("--target", "inf2", "--logical-nc-config", "1"),
                ),
            ),
        ),
        ("--cache_dir=/x --no_cache", CompilerFlags(cache_dir="/x", no_cache=True)),
        ("--optlevel 1 --optlevel 2", CompilerFlags(passed_on=("--optlevel", "1", "--optlevel", "2"))),
    ],
)
def test_compiler_flags(text: str, expected: CompilerFlags) -> None:
    assert compiler_flags.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("--auto-cast some", "argument --auto-cast: invalid choice: 'some' (choose from none, matmult, all)"),
        ("--bogus", "unrecognized argument '--bogus'"),
        ("--target", "argument --target: expected one argument"),
        ("--target trn9", "invalid choice: 'trn9'"),
        ("'open", "close the quote"),
    ],
)
def test_flags_that_the_compiler_refuses(text: str, error: str) -> None:
    with pytest.raises(InvalidCompilerFlags) as refused:
        compiler_flags.parse(text)
    assert error in str(refused.value)


def test_the_hash_of_no_flags_is_the_known_one() -> None:
    assert compiler_flags.parse("").hash_text == "d41d8cd9"
    assert compiler_flags.parse("--cache_dir /x").hash_text == "d41d8cd9"
    assert compiler_flags.parse("--optlevel 1").hash_text != "d41d8cd9"


SCRIPT = """
import os, sys, torch, torch_xla, torch_xla.core.xla_model as xm
os.environ.update(dict(item.split("=", 1) for item in sys.argv[1:]))
torch.manual_seed(0)
a, b = torch.randn(64, 64), torch.randn(64, 64)
x, y = a.to(xm.xla_device()), b.to(xm.xla_device())
z = x @ y
w = x * y
xm.mark_step()
torch.save({"a": a, "b": b, "z": z.cpu(), "w": w.cpu(), "bytes": xm.get_memory_info()["bytes_used"]}, "out.pt")
"""


def computed(run_python: Callable[..., object], tmp_path: object, *settings: str) -> dict[str, torch.Tensor]:
    (tmp_path / "script.py").write_text(SCRIPT)  # type: ignore[operator]
    result = run_python("-m", "neurontools.runtime", "script.py", *settings)
    assert result.returncode == 0, result.stderr  # type: ignore[attr-defined]
    return torch.load(tmp_path / "out.pt")  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3"])
def test_auto_cast_rounds_the_inputs_of_products(
    run_python: Callable[..., object], tmp_path: object, name: str
) -> None:
    out = computed(run_python, tmp_path, f"NEURON_CC_FLAGS=--auto-cast matmult --auto-cast-type {name}")
    rounded = rounding.NEAREST[name]
    assert torch.equal(out["z"], rounded(out["a"]) @ rounded(out["b"]))
    assert torch.equal(out["w"], out["a"] * out["b"])


def test_use_bf16_halves_the_bytes_and_rounds(run_python: Callable[..., object], tmp_path: object) -> None:
    out = computed(run_python, tmp_path, "XLA_USE_BF16=1", "NEURON_RT_STOCHASTIC_ROUNDING_EN=0")
    assert out["z"].dtype is torch.float32
    assert torch.equal(out["z"], (out["a"].bfloat16() @ out["b"].bfloat16()).float())
    full = computed(run_python, tmp_path)
    assert torch.equal(full["z"], full["a"] @ full["b"])
    tensors = 4 * 64 * 64
    assert full["bytes"] - out["bytes"] in range(tensors * 2 - 200, tensors * 2 + 200)


def test_stochastic_rounding_of_a_run_is_reproducible_and_close(
    run_python: Callable[..., object], tmp_path: object
) -> None:
    first = computed(run_python, tmp_path, "XLA_USE_BF16=1", "NEURON_RT_STOCHASTIC_ROUNDING_SEED=7")
    again = computed(run_python, tmp_path, "XLA_USE_BF16=1", "NEURON_RT_STOCHASTIC_ROUNDING_SEED=7")
    other = computed(run_python, tmp_path, "XLA_USE_BF16=1", "NEURON_RT_STOCHASTIC_ROUNDING_SEED=8")
    assert torch.equal(first["z"], again["z"])
    assert not torch.equal(first["z"], other["z"])
    exact = first["a"].bfloat16().float() @ first["b"].bfloat16().float()
    assert ((first["z"] - exact).abs() <= exact.abs() / 128 + 1e-6).all()
