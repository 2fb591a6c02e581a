"""torch_xla.experimental: eager mode, and names that moved to the stable modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neurontools.runtime.tensors.device import device as _device


def eager_mode(enable: bool) -> None:
    """Switches eager mode on or off: operators run immediately, or are recorded until mark_step."""
    _device.flush_all("EagerMode")
    _device.eager = bool(enable)


def is_eager_mode() -> bool:
    return _device.eager


def compile(f: Callable[..., Any] | None = None, **options: Any) -> Any:  # noqa: A001  (the name of torch_xla)
    """Like torch_xla.compile. Creates one graph in eager mode too."""
    import torch_xla

    return torch_xla.compile(f, **options)
