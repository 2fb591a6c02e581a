"""neuronx_distributed.utils on simulated NeuronCores."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"neuronx_distributed.utils.{name}"))
