"""torch_neuronx on simulated NeuronCores: importing it also imports torch_xla, as the original does."""

from __future__ import annotations

from typing import Any

import torch_xla  # noqa: F401

from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.torch_device import profiler, torch_module

__version__ = VERSIONS["torch_neuronx"]

from . import profiling as profiling
from . import xla_impl as xla_impl


def memory_stats(which: Any = None) -> dict[str, int]:
    """Returns the HBM in use on a core and its peak, in bytes by category."""
    return dict(torch_module.memory_stats(which))


def memory_allocated(which: Any = None) -> int:
    """Returns the HBM of the tensors and parameters on a core, in bytes."""
    return torch_module.memory_allocated(which)


def memory_summary(which: Any = None, abbreviated: bool = False) -> str:
    """Returns the HBM of each core by category, as text."""
    return profiler.memory_summary(which, abbreviated)


def trace(*_args: Any, **_kwargs: Any) -> Any:
    """Raises NotImplementedError: tracing for inference is not supported, and models run on the device without it."""
    raise NotImplementedError("torch_neuronx.trace is not part of the simulated runtime; use model.to(device)")
