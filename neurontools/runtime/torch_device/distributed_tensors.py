"""torch.distributed.tensor on the device, where linear layers have an operator of their own in backward.

On the CPU it is made of products; here `linear_backward` gets distributed tensors, and torch has no rule how its
results are shared out. It is made of products for them, whose rules torch has.
"""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.torch_device.when_imported import when_imported

Tensor = torch.Tensor


def install() -> None:
    """Has it done when torch.distributed.tensor is imported; once a process."""
    when_imported("torch.distributed.tensor", _change)


def _change(package: Any) -> None:
    dispatcher = package.DTensor._op_dispatcher
    dispatcher._custom_op_handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _linear_backward(_operator: Any, arguments: tuple[Any, ...], _keywords: Any) -> tuple[Tensor | None, ...]:
    value, gradient, weight, (of_value, of_weight, of_bias) = arguments
    rows = gradient.reshape(-1, gradient.shape[-1])
    flat = value.reshape(-1, value.shape[-1])
    return (
        rows.mm(weight).reshape(value.shape) if of_value else None,
        rows.t().mm(flat) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )
