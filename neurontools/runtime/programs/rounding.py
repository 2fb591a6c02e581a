"""Rounding of float tensors to the narrower types of the Neuron engines, to nearest or at random."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor
FP8_E4M3_LARGEST = 240.0  # of the engines' own fp8_e4m3; float8_e4m3fn reaches 448


def to_bf16(value: Tensor) -> Tensor:
    """Float32 values rounded to the nearest bfloat16, still as float32."""
    return value.to(torch.bfloat16).to(value.dtype)


def to_fp16(value: Tensor) -> Tensor:
    """Float32 values rounded to the nearest float16, still as float32; beyond its range they become infinite."""
    return value.to(torch.float16).to(value.dtype)


def to_tf32(value: Tensor) -> Tensor:
    """Float32 values rounded to the nearest with 10 bits of mantissa, ties to even; inf and nan stay what they are."""
    bits = value.contiguous().view(torch.int32)
    rounded = bits + (0x0FFF + ((bits >> 13) & 1))
    rounded = (rounded & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(value), rounded, value)


def to_fp8_e4m3(value: Tensor) -> Tensor:
    """Float32 values rounded to the nearest fp8_e4m3 and saturated at its largest, still as float32."""
    clamped = value.clamp(-FP8_E4M3_LARGEST, FP8_E4M3_LARGEST)
    return clamped.to(torch.float8_e4m3fn).to(value.dtype)


NEAREST: dict[str, Callable[[Tensor], Tensor]] = {
    "bf16": to_bf16,
    "fp16": to_fp16,
    "tf32": to_tf32,
    "fp8_e4m3": to_fp8_e4m3,
}


def stochastic_bf16(value: Tensor, generator: torch.Generator) -> Tensor:
    """Float32 values rounded to one of the two neighbouring bfloat16, at random in proportion to their nearness.

    The mean of many roundings is the value itself. Inf and nan stay what they are.
    """
    bits = value.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32, device="cpu")
    rounded = ((bits + noise) & ~0xFFFF).view(torch.float32)
    return torch.where(torch.isfinite(value), rounded, value).to(torch.bfloat16)
