"""Numeric precision of programs, which compiler flags and the XLA bfloat16 variables set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.operators.operator import flattened, map_tensors
from neurontools.runtime.programs.compiled_graph import CompiledGraph, Instruction, ValueUse
from neurontools.runtime.tensors.buffers import Tensor

USE_BF16 = "XLA_USE_BF16"
DOWNCAST_BF16 = "XLA_DOWNCAST_BF16"
STOCHASTIC = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
STOCHASTIC_SEED = "NEURON_RT_STOCHASTIC_ROUNDING_SEED"
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "float8_e4m3fn"}


def narrowed_types(environment: Mapping[str, str]) -> dict[torch.dtype, torch.dtype]:
    """Returns the narrower dtypes in HBM by dtype of the script, as XLA_USE_BF16 or XLA_DOWNCAST_BF16 request."""
    if environment.get(USE_BF16) == "1":
        return {torch.float32: torch.bfloat16, torch.float64: torch.bfloat16}
    if environment.get(DOWNCAST_BF16) == "1":
        return {torch.float32: torch.bfloat16, torch.float64: torch.float32}
    return {}


def stochastic_rounding(environment: Mapping[str, str]) -> bool:
    """Returns whether bfloat16 results are rounded stochastically. The default is true if dtypes are narrowed."""
    wanted = environment.get(STOCHASTIC, "")
    return wanted == "1" or (wanted == "" and bool(narrowed_types(environment)))


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numeric precision of programs. `auto_cast` and `auto_cast_type` are flags of NEURON_CC_FLAGS.

    If `auto_cast` is `matmult`, inputs of matrix multiplications and convolutions are rounded from float32 to
    `auto_cast_type`, and products are summed in float32. If `auto_cast` is `all`, float32 inputs of all other operators
    are rounded too: to bfloat16 if `auto_cast_type` has a smaller range than float32, because an optimizer's epsilon
    would become 0. Values updated in place are never rounded. Without stochastic rounding, `stochastic` is None.
    """

    auto_cast: str = "none"
    auto_cast_type: str = "bf16"
    stochastic: torch.Generator | None = None

    @property
    def is_plain(self) -> bool:
        """Whether programs compute exactly as the CPU does."""
        return self.auto_cast == "none" and self.stochastic is None and not layouts.narrowed

    def multiplied(self, dtype: str) -> str:
        """Returns the element type in which matrices of type `dtype` are multiplied, such as `bfloat16`."""
        if dtype != "float32" or self.auto_cast == "none":
            return dtype
        return _TORCH_NAMES.get(self.auto_cast_type, self.auto_cast_type)

    def call_of(self, instruction: Instruction, compiled: CompiledGraph) -> Callable[..., Any]:
        operator = instruction.operator
        call = operator.call_for(instruction.arguments, [_layout(part, compiled) for part in instruction.arguments])
        if operator.matmul and self.auto_cast != "none":
            call = _rounding_inputs(call, NEAREST[self.auto_cast_type], _written_positions(instruction))
        elif self.auto_cast == "all" and not operator.effect:
            wide = self.auto_cast_type if self.auto_cast_type in ("bf16", "tf32") else "bf16"
            call = _rounding_inputs(call, NEAREST[wide], _written_positions(instruction))
        if self.stochastic is not None and _touches_bf16(instruction, compiled) and not operator.effect:
            narrow = any(compiled.layouts[n].device_dtype is torch.bfloat16 for n in flattened(instruction.results))
            call = _rounding_results(call, self.stochastic, _written_positions(instruction), narrow)
        if layouts.narrowed and (operator.has_device or "dtype" in instruction.keywords):
            call = _narrowing(call)
        return call


def _layout(part: Any, compiled: CompiledGraph) -> TensorLayout | None:
    return (part.layout or compiled.layouts[part.value]) if isinstance(part, ValueUse) else None


def _written_positions(instruction: Instruction) -> frozenset[int | str]:
    positions: set[int | str] = set()
    for position, name in instruction.operator.writes:
        positions.add(name)
        if name not in instruction.keywords:
            positions.add(position)
    return frozenset(positions)


def _touches_bf16(instruction: Instruction, compiled: CompiledGraph) -> bool:
    parts = flattened([instruction.arguments, *instruction.keywords.values()])
    numbers = [*(part.value for part in parts if isinstance(part, ValueUse)), *flattened(instruction.results)]
    return any(compiled.layouts[number].device_dtype is torch.bfloat16 for number in numbers)


def _rounding_inputs(
    call: Callable[..., Any], rounding: Callable[[Tensor], Tensor], unrounded: frozenset[int | str]
) -> Callable[..., Any]:
    def rounded(value: Tensor) -> Tensor:
        return rounding(value) if value.dtype is torch.float32 else value

    def run(*arguments: Any, **keywords: Any) -> Any:
        return call(
            *[a if i in unrounded else map_tensors(a, rounded) for i, a in enumerate(arguments)],
            **{name: a if name in unrounded else map_tensors(a, rounded) for name, a in keywords.items()},
        )

    return run


def _rounding_results(
    call: Callable[..., Any], generator: torch.Generator, written: frozenset[int | str], narrow: bool
) -> Callable[..., Any]:
    """Wraps an operator, so that it computes in float32 and rounds its results stochastically to bfloat16."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        wide: list[tuple[Tensor, Tensor]] = []

        def widened(value: Tensor) -> Tensor:
            return value.float() if value.dtype is torch.bfloat16 else value

        def widened_target(value: Tensor) -> Tensor:
            if value.dtype is not torch.bfloat16:
                return value
            wide.append((value, value.float()))
            return wide[-1][1]

        def narrowed(value: Tensor) -> Tensor:
            return stochastic_bf16(value, generator) if value.dtype is torch.float32 else value

        if keywords.get("dtype") is torch.bfloat16:
            keywords["dtype"] = torch.float32
        result = call(
            *[map_tensors(a, widened_target if i in written else widened) for i, a in enumerate(arguments)],
            **{name: map_tensors(a, widened_target if name in written else widened) for name, a in keywords.items()},
        )
        for target, computed in wide:
            target.copy_(stochastic_bf16(computed, generator))
        return map_tensors(result, narrowed) if narrow else result

    return run


def _narrowing(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operator with a device or dtype argument, so that it converts its results to their dtypes in HBM."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        return map_tensors(call(*arguments, **keywords), lambda t: t.to(layouts.narrowed.get(t.dtype, t.dtype)))

    return run


FP8_E4M3_LARGEST = 240.0  # the largest fp8_e4m3 value on the device; torch's float8_e4m3fn reaches 448


def to_tf32(value: Tensor) -> Tensor:
    """Rounds float32 values to the nearest TF32 value (10-bit mantissa), ties to even. Keeps infinity and NaN."""
    bits = value.contiguous().view(torch.int32)
    rounded = bits + (0x0FFF + ((bits >> 13) & 1))
    rounded = (rounded & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(value), rounded, value)


def to_fp8_e4m3(value: Tensor) -> Tensor:
    """Rounds float32 values to the nearest fp8_e4m3, saturated at its largest value. Returns float32."""
    clamped = value.clamp(-FP8_E4M3_LARGEST, FP8_E4M3_LARGEST)
    return clamped.to(torch.float8_e4m3fn).to(value.dtype)


NEAREST: dict[str, Callable[[Tensor], Tensor]] = {
    "bf16": lambda value: value.to(torch.bfloat16).to(value.dtype),
    "fp16": lambda value: value.to(torch.float16).to(value.dtype),
    "tf32": to_tf32,
    "fp8_e4m3": to_fp8_e4m3,
}
"""Functions that round float32 values to the nearest value of a type, and return float32."""


def stochastic_bf16(value: Tensor, generator: torch.Generator) -> Tensor:
    """Rounds each float32 value up or down to a bfloat16, at random. The nearer bfloat16 is more likely.

    The mean of many roundings of a value is the value. Keeps infinity and NaN.
    """
    bits = value.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32, device="cpu")
    rounded = ((bits + noise) & ~0xFFFF).view(torch.float32)
    return torch.where(torch.isfinite(value), rounded, value).to(torch.bfloat16)
