"""Functions of torch's Python API that do just what an operator does, where calling them costs less.

The call of an operator by its name goes through its schema, argument by argument; these have parsers of their own. They
are for calls whose first argument is a tensor or a list of tensors. The tests ask torch's dispatcher which operator
each of them calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_functions: Any = torch._C._VariableFunctions
_nn: Any = torch._C._nn
_methods: Any = torch._C.TensorBase

BINDINGS: dict[str, Callable[..., Any]] = {
    **{f"aten::{name}.Tensor": getattr(_functions, name) for name in ("add", "sub", "mul", "div")},
    **{f"aten::{name}_.Tensor": getattr(_methods, f"{name}_") for name in ("add", "sub", "mul", "div")},
    **{
        f"aten::{name}": getattr(_functions, name)
        for name in (
            "mm bmm addmm relu sigmoid tanh exp sqrt rsqrt neg embedding clone _softmax _log_softmax "
            "_softmax_backward_data _log_softmax_backward_data native_layer_norm"
        ).split()
        if hasattr(_functions, name)
    },
    **{f"aten::{name}_": getattr(_methods, f"{name}_") for name in ("relu", "sigmoid", "tanh")},
    **{
        f"aten::_foreach_{name}": getattr(_functions, f"_foreach_{name.partition('.')[0]}")
        for name in (
            "add_.List add_.Scalar mul_.Scalar lerp_.Scalar addcmul_.Scalar sqrt div_.ScalarList addcdiv_.ScalarList"
        ).split()
    },
    "aten::gelu": _nn.gelu,
}
"""By the operator's name."""
