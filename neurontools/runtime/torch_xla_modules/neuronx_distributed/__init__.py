"""neuronx_distributed on simulated NeuronCores: data and tensor parallelism, for training and inference.

Not supported: pipeline, expert and context parallelism, quantized layers, LoRA, `trainer`.
"""

import torch_xla  # noqa: F401  (the original imports it too)

from neurontools.runtime.launch.import_hook import VERSIONS

from . import parallel_layers as parallel_layers
from . import trace as trace
from .trace import ModelBuilder as ModelBuilder
from .trace import NxDModel as NxDModel
from .trace import NxDParallelState as NxDParallelState
from .trace import shard_checkpoint as shard_checkpoint

__version__ = VERSIONS["neuronx_distributed"]
