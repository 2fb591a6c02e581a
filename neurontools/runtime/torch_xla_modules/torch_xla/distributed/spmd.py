"""torch_xla.distributed.spmd, of which nothing is there: transformers imports it whether it needs it or not."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.distributed.spmd.{name}"))
