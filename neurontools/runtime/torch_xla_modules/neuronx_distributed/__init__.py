"""neuronx_distributed on simulated NeuronCores: data and tensor parallelism, and nothing else of it.

There are no pipelines, experts, contexts, quantized layers, LoRA, `trainer` or tracing for inference.
"""

from __future__ import annotations

import torch_xla  # noqa: F401  (as the original, which works on its devices)

from neurontools.runtime.launch.import_hook import VERSIONS

from . import parallel_layers as parallel_layers

__version__ = VERSIONS["neuronx_distributed"]
