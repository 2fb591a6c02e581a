"""torch_neuronx on simulated NeuronCores: importing it also imports torch_xla, as the original does."""

from __future__ import annotations

import torch_xla  # noqa: F401

from neurontools.runtime.inference.buckets import BucketModelConfig as BucketModelConfig
from neurontools.runtime.inference.buckets import bucket_model_trace as bucket_model_trace
from neurontools.runtime.inference.data_parallel import DataParallel as DataParallel
from neurontools.runtime.inference.model_functions import async_load as async_load
from neurontools.runtime.inference.model_functions import dynamic_batch as dynamic_batch
from neurontools.runtime.inference.model_functions import lazy_load as lazy_load
from neurontools.runtime.inference.model_functions import move_trace_to_device as move_trace_to_device
from neurontools.runtime.inference.model_functions import replace_weights as replace_weights
from neurontools.runtime.inference.operator_support import analyze as analyze
from neurontools.runtime.inference.tracing import PartitionerConfig as PartitionerConfig
from neurontools.runtime.inference.tracing import trace as trace
from neurontools.runtime.kernels.reference import nki_op as nki_op
from neurontools.runtime.launch.import_hook import VERSIONS, UnsupportedName
from neurontools.runtime.torch_device import memory as memory
from neurontools.runtime.torch_device import torch_module

from . import experimental as experimental
from . import profiling as profiling
from . import xla_impl as xla_impl

nki_jit, wrap_nki = (UnsupportedName(f"torch_neuronx.{name}") for name in ("nki_jit", "wrap_nki"))
__version__ = VERSIONS["torch_neuronx"]
globals().update(torch_module.public_functions() | memory.NAMES)  # torch_neuronx has the functions of torch.neuron
