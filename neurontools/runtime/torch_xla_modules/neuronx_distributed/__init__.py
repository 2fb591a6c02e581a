"""neuronx_distributed on simulated NeuronCores: data and tensor parallelism, and nothing else of it.

There are no pipelines, experts, contexts, quantized layers, LoRA, `trainer` or tracing for inference.
"""

from __future__ import annotations

from typing import Any

import torch_xla  # noqa: F401  (as the original, which works on its devices)

from neurontools.runtime.launch.import_hook import VERSIONS, unsupported_message

from . import parallel_layers as parallel_layers

__version__ = VERSIONS["neuronx_distributed"]


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"neuronx_distributed.{name}"))
