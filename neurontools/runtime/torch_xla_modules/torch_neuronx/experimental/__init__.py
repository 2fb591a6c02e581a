"""torch_neuronx.experimental: placement, the cores onto which traced models are loaded, and profiler."""

import importlib

from neurontools.runtime.inference.model_functions import multicore_context as multicore_context
from neurontools.runtime.inference.model_functions import neuron_cores_context as neuron_cores_context
from neurontools.runtime.inference.model_functions import set_multicore as set_multicore
from neurontools.runtime.inference.model_functions import set_neuron_cores as set_neuron_cores

from . import profiler as profiler

placement = importlib.import_module(f"{__name__}.placement")  # an alias of this module
