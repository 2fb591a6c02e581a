"""torch_xla._internal: the part of it that Lightning asks which devices there are."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla._internal.{name}"))
