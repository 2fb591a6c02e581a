"""Operators that take numbers, written so that the numbers may be tensors without dimensions.

A learning rate is another one at each step, and would else be a constant of the machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.native.segments import base_name
from neurontools.runtime.programs.compiled_graph import Instruction

Tensor = torch.Tensor


def _as(number: Any, like: Tensor) -> Any:
    """A number in the type in which the CPU's kernels compute with it."""
    if not isinstance(number, Tensor) or number.dim():
        return number
    return number.to(torch.float64 if like.dtype is torch.float64 else torch.float32)


def _scaled(value: Any, factor: Any, like: Tensor) -> Any:
    return value if isinstance(factor, int) and factor == 1 else value * _as(factor, like)


def _add(self: Tensor, other: Any, alpha: Any = 1) -> Any:
    return self + _scaled(_as(other, self), alpha, self)


def _sub(self: Tensor, other: Any, alpha: Any = 1) -> Any:
    return self - _scaled(_as(other, self), alpha, self)


def _mul(self: Tensor, other: Any) -> Any:
    return self * _as(other, self)


def _div(self: Tensor, other: Any) -> Any:
    return self / _as(other, self)


def _addcmul(self: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Any:
    return self + _scaled(first, value, self) * second


def _addcdiv(self: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Any:
    return self + _scaled(first, value, self) / second


def _lerp(self: Tensor, end: Tensor, weight: Any) -> Any:
    return torch.lerp(self, end, _as(weight, self).to(self.dtype) if isinstance(weight, Tensor) else weight)


_FORMULAS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
}


def with_changing(instruction: Instruction) -> Callable[..., Any]:
    """What computes an instruction whose numbers may be tensors; KeyError for one that has none such."""
    name = instruction.operator.name
    formula = _FORMULAS[base_name(name)]
    if instruction.operator.name.startswith("aten::_foreach_"):
        formula = _on_lists(formula)
    return _in_place(formula) if instruction.operator.in_place else formula


def _on_lists(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Lists are taken apart, a single number goes with each tensor."""

    def run(first: Sequence[Tensor], *others: Any, **keywords: Any) -> list[Any]:
        def at(value: Any, position: int) -> Any:
            return value[position] if isinstance(value, (list, tuple)) else value

        return [
            formula(
                each,
                *(at(other, position) for other in others),
                **{_SINGULAR.get(name, name): at(value, position) for name, value in keywords.items()},
            )
            for position, each in enumerate(first)
        ]

    return run


_SINGULAR = {"scalars": "value", "scalar": "value"}


def _in_place(formula: Callable[..., Any]) -> Callable[..., None]:
    def run(target: Any, *others: Any, **keywords: Any) -> None:
        made = formula(target, *others, **keywords)
        if isinstance(made, list):
            for each, value in zip(target, made, strict=True):
                each.copy_(value)
        else:
            target.copy_(made)

    return run
