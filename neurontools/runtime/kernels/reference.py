"""`torch_neuronx.nki_op`: operators whose NKI kernel does not run here, and that run a reference for the CPU instead.

Source: "NKI kernels as PyTorch operators" of the AWS Neuron documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from neurontools.runtime.counting.metrics import metrics


def nki_op(
    name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: str | Iterable[str] = (), schema: Any = None
) -> Any:
    """Defines the operator `name`, such as "mylib::add", for the signature of `fn`. Also works as a decorator.

    The operator runs the function of its `register_kernel("cpu")`, and counts each run as NkiReference:mylib::add.
    Without such a function it raises NotImplementedError. `fn` itself, which calls an NKI kernel, never runs.
    """
    if fn is None:
        return lambda given: nki_op(name, given, mutates_args=mutates_args, schema=schema)

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"torch_neuronx.nki_op: the NKI kernel of {name} does not run here; register a reference function for the "
            f'CPU: @{fn.__name__}.register_kernel("cpu")'
        )

    operator: Any = torch.library.custom_op(
        name,
        refuse,
        mutates_args=mutates_args,
        device_types="cpu",
        schema=schema or torch.library.infer_schema(fn, mutates_args=mutates_args),
    )
    register = operator.register_kernel

    def register_kernel(device_types: Any, func: Callable[..., Any] | None = None, /) -> Any:
        if func is None:
            return lambda given: register_kernel(device_types, given)

        @wraps(func)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            metrics.increment(f"NkiReference:{name}")
            return func(*arguments, **keywords)

        return register(device_types, counted)

    operator.register_kernel = register_kernel
    return operator
