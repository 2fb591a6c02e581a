"""torch_xla.utils on simulated NeuronCores."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla.utils.{name}"))
