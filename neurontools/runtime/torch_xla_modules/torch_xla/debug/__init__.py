"""torch_xla.debug on simulated NeuronCores."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of

from . import metrics as metrics


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.debug.{name}"))
