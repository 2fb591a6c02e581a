"""Cells of nn.LSTM and nn.GRU: torch takes the fused ones on an accelerator; here they are made of plain operators."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.buffer import Tensor


def fused_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_thnn_fused_lstm_cell"""
    gates = input_gates + hidden_gates if b_ih is None else (input_gates + b_ih) + (hidden_gates + b_hh)
    i, f, n, o = gates.chunk(4, 1)
    i, f, n, o = i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid()
    cell = (f * cx) + (i * n)
    return o * cell.tanh(), cell, torch.cat([i, f, n, o], 1)


def fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    """aten::_thnn_fused_gru_cell"""
    if b_ih is not None:
        input_gates = input_gates + b_ih
        hidden_gates = hidden_gates + b_hh
    input_r, input_z, input_n = input_gates.chunk(3, 1)
    hidden_r, hidden_z, hidden_n = hidden_gates.chunk(3, 1)
    r = (hidden_r + input_r).sigmoid()
    z = (hidden_z + input_z).sigmoid()
    n = (input_n + hidden_n * r).tanh()
    return (hx - n) * z + n, torch.cat([r, z, n, hx, hidden_n], 1)
