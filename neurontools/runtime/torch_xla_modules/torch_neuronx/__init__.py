"""torch_neuronx on simulated NeuronCores: importing it also imports torch_xla, as the original does."""

from __future__ import annotations

from typing import Any

import torch_xla  # noqa: F401

from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.torch_device.profiler import memory_summary as memory_summary
from neurontools.runtime.torch_device.torch_module import memory_allocated as memory_allocated
from neurontools.runtime.torch_device.torch_module import memory_stats as memory_stats

__version__ = VERSIONS["torch_neuronx"]

from . import profiling as profiling
from . import xla_impl as xla_impl


def trace(*_args: Any, **_kwargs: Any) -> Any:
    """Raises NotImplementedError: tracing for inference is not supported, and models run on the device without it."""
    raise NotImplementedError("torch_neuronx.trace is not part of the simulated runtime; use model.to(device)")
