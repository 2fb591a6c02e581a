"""torch_xla.experimental: eager mode, and names that moved to the stable modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neurontools.runtime.tensors.device import device as _device

from .. import compile as compile  # noqa: A004  (the name of torch_xla)


def eager_mode(enable: bool) -> None:
    """Switches eager mode on or off: operators run immediately, or are recorded until mark_step."""
    _device.flush_all("EagerMode")
    _device.eager = bool(enable)


def is_eager_mode() -> bool:
    return _device.eager


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[bool]:
    """Switches eager mode on or off in a block. Returns the mode before it."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield before
    finally:
        eager_mode(before)
