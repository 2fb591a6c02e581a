"""A small training of neuron-diag whose losses are exact, so the same reference holds on any correct device.

All weights are multiples of 1/64 between -1 and 1, and the activations multiples of 1/16. Each operand of a matrix
product is therefore exact in bfloat16, and each sum is exact in fp32, in any order. A device that rounds operands to
bfloat16 and adds in fp32 gets the same losses, bit for bit. No tolerance is needed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_xla.core.xla_model as xm

LOSSES = (
    87.525390625,
    75.125,
    64.900390625,
    58.0888671875,
    46.2744140625,
    35.740234375,
    28.6806640625,
    30.8037109375,
    24.4365234375,
    18.466796875,
    19.4873046875,
    22.3505859375,
)
"""The loss of each step, recorded in double precision on a CPU."""
_WEIGHT_STEP, _ACTIVATION_STEP, _LARGEST_ACTIVATION = 1 / 64, 1 / 16, 8 - 1 / 16
_LEARNING_RATE = 2.0**-11


def train(device: Any, dtype: torch.dtype = torch.float32) -> list[float]:
    """Trains a network with two layers on the device. Returns the loss of each step."""
    inputs = ((torch.arange(64 * 16).reshape(64, 16) * 7 + 3) % 5 % 3 - 1).to(dtype)
    targets = torch.stack((inputs[:, :4].sum(1), (inputs[:, 4:8] * inputs[:, 8:12]).sum(1)), 1)
    first = (((torch.arange(16 * 32).reshape(16, 32) * 13 + 5) % 31 - 15) * _WEIGHT_STEP).to(dtype)
    second = (((torch.arange(32 * 2).reshape(32, 2) * 11 + 3) % 29 - 14) * _WEIGHT_STEP).to(dtype)
    inputs, targets = inputs.to(device), targets.to(device)
    weights = [first.to(device).requires_grad_(), second.to(device).requires_grad_()]
    optimizer = torch.optim.SGD(weights, lr=_LEARNING_RATE)
    losses = []
    for _ in LOSSES:
        optimizer.zero_grad()
        hidden = (inputs @ weights[0]).clamp(0, _LARGEST_ACTIVATION)
        rounded = hidden + (_rounded_down(hidden, _ACTIVATION_STEP) - hidden).detach()  # keeps the gradient
        loss = (rounded @ weights[1] - targets).abs().sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for weight in weights:
                weight.copy_(_rounded_down(weight, _WEIGHT_STEP).clamp(-1, 1))
        xm.mark_step()
        losses.append(loss.item())
    return losses


def _rounded_down(value: torch.Tensor, step: float) -> torch.Tensor:
    return (value / step).floor() * step
