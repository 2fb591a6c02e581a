"""Kernels for nn.LSTM, nn.GRU, nn.RNN and their cells, whose results equal the CPU's bit by bit.

They compute in the same steps as aten/src/ATen/native/RNN.cpp and mkldnn/RNN.cpp for CPU tensors. On accelerators,
torch uses other cells, which add the biases in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels.layers import probe
from neurontools.runtime.operators.operator import DeviceOperator, operators
from neurontools.runtime.tensors.buffers import Tensor

State = tuple[Tensor, ...]  # (h,) or (h, c)
_ONEDNN_LSTM = 2
_onednn: Any = torch.ops.mkldnn
_onednn_layer: Any = torch.ops.aten.mkldnn_rnn_layer.default
_linear: Any = torch.ops.aten.linear.default


@dataclass(frozen=True, slots=True)
class _Weights:
    """The parameters of one layer in one direction, with torch's names. `w_hr` projects the output of an LSTM."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None


Cell = Callable[[Tensor, State, _Weights, bool], State]
Layer = tuple[Tensor, State]


def _input_gates(value: Tensor, weights: _Weights, is_ready: bool) -> Tensor:
    return value if is_ready else _linear(value, weights.w_ih, weights.b_ih)


def _lstm_step(value: Tensor, state: State, weights: _Weights, is_ready: bool) -> State:
    h, c = state
    gates = _linear(h, weights.w_hh, weights.b_hh).add_(_input_gates(value, weights, is_ready))
    i, f, g, o = gates.unsafe_chunk(4, 1)
    i, f, g, o = i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
    cell = (f * c).add_(i * g)
    h = o * cell.tanh()
    return h if weights.w_hr is None else h.matmul(weights.w_hr.t()), cell


def _gru_step(value: Tensor, state: State, weights: _Weights, is_ready: bool) -> State:
    (h,) = state
    input_r, input_z, input_n = _input_gates(value, weights, is_ready).unsafe_chunk(3, 1)
    hidden_r, hidden_z, hidden_n = _linear(h, weights.w_hh, weights.b_hh).unsafe_chunk(3, 1)
    r = hidden_r.add_(input_r).sigmoid_()
    z = hidden_z.add_(input_z).sigmoid_()
    n = input_n.add(hidden_n.mul_(r)).tanh_()
    return ((h - n).mul_(z).add_(n),)


def _simple_step(activation: Callable[[Tensor], Tensor]) -> Cell:
    def step(value: Tensor, state: State, weights: _Weights, is_ready: bool) -> State:
        (h,) = state
        hidden = _linear(h, weights.w_hh, weights.b_hh)
        return (activation(hidden.add_(_input_gates(value, weights, is_ready))),)

    return step


_CELLS: dict[str, Cell] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": _simple_step(torch.tanh),
    "rnn_relu": _simple_step(torch.relu),
}


def _run_padded(cell: Cell, value: Tensor, state: State, weights: _Weights, is_reversed: bool) -> Layer:
    """Runs one layer over a padded sequence, whose first dimension is time."""
    steps = _linear(value, weights.w_ih, weights.b_ih).unbind(0)
    if not steps:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    outputs = []
    for step in reversed(steps) if is_reversed else steps:
        state = cell(step, state, weights, True)
        outputs.append(state[0])
    if is_reversed:
        outputs.reverse()
    return torch.stack(outputs, 0), state


def _packed_runner(sizes: list[int]) -> Callable[[Cell, Tensor, State, _Weights, bool], Layer]:
    """Returns a function that runs one layer over a packed sequence. `sizes` has the batch size at each time step."""

    def narrowed(state: State, first: int, end: int) -> State:
        return tuple(s.narrow(0, first, end - first) for s in state)

    def forward(cell: Cell, gates: Tensor, state: State, weights: _Weights) -> Layer:
        outputs, ended, offset, last = [], [], 0, sizes[0]
        for size in sizes:
            step = gates.narrow(0, offset, size)
            offset += size
            if size < last:
                ended.append(narrowed(state, size, last))
                state = narrowed(state, 0, size)
            last = size
            state = cell(step, state, weights, True)
            outputs.append(state[0])
        ended.append(state)
        ended.reverse()
        return torch.cat(outputs, 0), tuple(torch.cat(parts, 0) for parts in zip(*ended, strict=True))

    def backward(cell: Cell, gates: Tensor, initial: State, weights: _Weights) -> Layer:
        outputs, offset, last = [], gates.shape[0], sizes[-1]
        state = narrowed(initial, 0, last)
        for size in reversed(sizes):
            if size > last:
                joined = zip(state, narrowed(initial, last, size), strict=True)
                state = tuple(torch.cat(parts, 0) for parts in joined)
            step = gates.narrow(0, offset - size, size)
            offset -= size
            last = size
            state = cell(step, state, weights, True)
            outputs.append(state[0])
        outputs.reverse()
        return torch.cat(outputs, 0), state

    def layer(cell: Cell, value: Tensor, state: State, weights: _Weights, is_reversed: bool) -> Layer:
        gates = _linear(value, weights.w_ih, weights.b_ih)
        return (backward if is_reversed else forward)(cell, gates, state, weights)

    return layer


def _onednn_lstm_layer(settings: tuple[int, bool, bool, bool, bool]) -> Callable[..., Layer]:
    """Returns a function that runs oneDNN's fused layer, which torch uses on the CPU for a padded LSTM."""
    layers, has_biases, bidirectional, batch_first, train = settings

    def layer(_cell: Cell, value: Tensor, state: State, weights: _Weights, is_reversed: bool) -> Layer:
        w_ih, w_hh = weights.w_ih, weights.w_hh
        b_ih = weights.b_ih if weights.b_ih is not None else torch.zeros_like(w_ih)
        b_hh = weights.b_hh if weights.b_hh is not None else torch.zeros_like(w_hh)
        size = state[0].shape[-1]
        # With gradients off, oneDNN runs another kernel, whose results differ in some bits.
        run = _onednn_layer if torch.is_grad_enabled() else torch.ops.neuron.rnn_layer_inference
        output, h, c = run(
            *(value, w_ih, w_hh, b_ih, b_hh, *state, is_reversed, [], _ONEDNN_LSTM, size, layers),
            *(has_biases, bidirectional, batch_first, train),
        )[:3]
        return output, (h, c)

    return layer


def _takes_onednn(value: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Returns whether torch would use oneDNN on the CPU for an LSTM with this input."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled or not value.numel():
        return False
    if torch.is_autocast_enabled(value.device.type):
        return True  # autocast converts the input of oneDNN's operator, as on the CPU
    if value.dtype is torch.bfloat16:
        return bool(_onednn._is_mkldnn_bf16_supported())
    if value.dtype is torch.float16:
        return bool(_onednn._is_mkldnn_fp16_supported()) and not torch.is_grad_enabled()
    return value.dtype is torch.float32


def _group_weights(parameters: Sequence[Tensor], has_biases: bool, has_projections: bool) -> list[_Weights]:
    names = ["w_ih", "w_hh", *(["b_ih", "b_hh"] if has_biases else []), *(["w_hr"] if has_projections else [])]
    groups = [parameters[i : i + len(names)] for i in range(0, len(parameters), len(names))]
    return [_Weights(**dict(zip(names, group, strict=True))) for group in groups]


def _run(
    kind: str,
    layer: Callable[[Cell, Tensor, State, _Weights, bool], Layer],
    value: Tensor,
    hidden: Sequence[Tensor],
    weights: list[_Weights],
    dropout: float,
    directions: int,
) -> tuple[Tensor, ...]:
    """Runs stacked layers, with dropout between the layers. `dropout` is 0 outside training.

    Returns the output, and the final states of all layers and directions as one tensor for each part of `hidden`.
    """
    states = list(zip(*(part.unbind(0) for part in hidden), strict=True))
    ended: list[State] = []
    for first in range(0, len(weights), directions):
        outputs = []
        for direction in range(directions):
            number = first + direction
            output, state = layer(_CELLS[kind], value, states[number], weights[number], direction == 1)
            outputs.append(output)
            ended.append(state)
        value = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and first + directions < len(weights):
            value = torch.dropout(value, dropout, True)
    return value, *(torch.stack(parts, 0) for parts in zip(*ended, strict=True))


def _parts(kind: str, hx: Any, params: Sequence[Tensor], has_biases: bool) -> tuple[Any, Any, bool]:
    """Returns the initial states, the weights by layer and direction, and whether an LSTM projects its outputs."""
    hidden = hx if kind == "lstm" else [hx]
    has_projections = kind == "lstm" and hidden[0].shape[2] != hidden[1].shape[2]
    return hidden, _group_weights(params, has_biases, has_projections), has_projections


def _padded_kernel(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(
        value: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        hidden, weights, has_projections = _parts(kind, hx, params, has_biases)
        layer: Any = _run_padded
        if batch_first:
            value = value.transpose(0, 1)
        if kind == "lstm" and not has_projections and _takes_onednn(value, params):
            layer = _onednn_lstm_layer((num_layers, has_biases, bidirectional, batch_first, train))
            value = value.contiguous()
            hidden = [part.contiguous() for part in hidden]
        result = _run(kind, layer, value, hidden, weights, dropout if train else 0.0, 1 + bidirectional)
        return (result[0].transpose(0, 1), *result[1:]) if batch_first else result

    return kernel


def _packed_kernel(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        hidden, weights, _ = _parts(kind, hx, params, has_biases)
        layer = _packed_runner(batch_sizes.tolist())
        return _run(kind, layer, data, hidden, weights, dropout if train else 0.0, 1 + bidirectional)

    return kernel


def _cell_kernel(kind: str) -> Callable[..., Any]:
    def kernel(
        value: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        state = tuple(hx) if kind == "lstm" else (hx,)
        result = _CELLS[kind](value, state, _Weights(w_ih, w_hh, b_ih, b_hh), False)
        return result if kind == "lstm" else result[0]

    return kernel


def _inference(*arguments: Any) -> tuple[Tensor, ...]:
    with torch.no_grad():
        output, h, c, _ = _onednn_layer(*arguments)
    return output, h, c


def register_recurrent(keep: Callable[[Any], None]) -> None:
    """Registers `neuron::rnn_layer_inference`: oneDNN's layer with gradients off. `keep` stores the library."""
    library = torch.library.Library("neuron", "FRAGMENT")
    keep(library)
    schema = str(_onednn_layer._schema).removeprefix("aten::mkldnn_rnn_layer").rpartition("->")[0]
    library.define(f"rnn_layer_inference{schema}-> (Tensor, Tensor, Tensor)")
    library.impl("rnn_layer_inference", _inference, "CPU")
    op = torch.ops.neuron.rnn_layer_inference.default
    operator = operators.add(DeviceOperator(op, call=_inference, meta_call=probe(_inference)))
    library.impl("rnn_layer_inference", recording_kernel(operator), "PrivateUse1")


RECURRENT_KERNELS: dict[str, Callable[..., Any]] = {
    name: kernel
    for kind in _CELLS
    for name, kernel in (
        (f"{kind}.input", _padded_kernel(kind)),
        (f"{kind}.data", _packed_kernel(kind)),
        (f"{kind}_cell", _cell_kernel(kind)),
    )
}
"""Kernels by operator name. They serve autograd too, because they consist of differentiable operators."""
