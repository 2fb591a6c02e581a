"""torch_neuronx on simulated NeuronCores: importing it also imports torch_xla, as the original does."""

from __future__ import annotations

import torch_xla  # noqa: F401

from neurontools.runtime.inference.tracing import trace as trace
from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.torch_device.profiler import memory_summary as memory_summary
from neurontools.runtime.torch_device.torch_module import memory_allocated as memory_allocated
from neurontools.runtime.torch_device.torch_module import memory_stats as memory_stats

__version__ = VERSIONS["torch_neuronx"]

from . import profiling as profiling
from . import xla_impl as xla_impl
