"""torch_xla.experimental: eager mode, and names that moved to the stable modules."""

from __future__ import annotations

from neurontools.runtime.tensors.device import device as _device

from .. import compile as compile  # noqa: A004  (the name of torch_xla)


def eager_mode(enable: bool) -> None:
    """Switches eager mode on or off: operators run immediately, or are recorded until mark_step."""
    _device.flush_all("EagerMode")
    _device.eager = bool(enable)


def is_eager_mode() -> bool:
    return _device.eager
