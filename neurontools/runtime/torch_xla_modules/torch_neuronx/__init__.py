"""torch_neuronx on simulated NeuronCores: importing it prepares torch_xla, as the original does."""

from __future__ import annotations

from typing import Any

import torch_xla  # noqa: F401

from neurontools.runtime.launch.distributions import VERSIONS
from neurontools.runtime.launch.missing import text_of

__version__ = VERSIONS["torch_neuronx"]

from . import xla_impl as xla_impl


def trace(*_args: Any, **_kwargs: Any) -> Any:
    """Not there: tracing for inference; models run on the device without it."""
    raise NotImplementedError("torch_neuronx.trace is not part of the simulated runtime; use model.to(device)")


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_neuronx.{name}"))
