"""torch_xla.experimental: executing operators at once, and what became part of the stable modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neurontools.runtime.tensors.device import device as _device


def eager_mode(enable: bool) -> None:
    """Has each operator executed at once from here on, or recorded until a step is marked."""
    _device.flush_all("EagerMode")
    _device.eager = bool(enable)


def is_eager_mode() -> bool:
    """Whether each operator is executed at once."""
    return _device.eager


def compile(f: Callable[..., Any] | None = None, **options: Any) -> Any:  # noqa: A001  (the name of torch_xla)
    """As torch_xla.compile: the operators of a function become one graph, in eager mode too."""
    import torch_xla

    return torch_xla.compile(f, **options)
