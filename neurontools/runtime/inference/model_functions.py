"""The functions of torch_neuronx that change a traced model in place: placement, loading, batching and weights.

Sources: "PyTorch NeuronX NeuronCore Placement APIs", "Lazy and Asynchronous Loading API", "Weight Replacement API" and
"Dynamic Batching" of the AWS Neuron documentation.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from neurontools.runtime.inference.placement import AUTOMATIC, placed, selected_cores
from neurontools.runtime.inference.script_module import model_of, neuron_modules
from neurontools.runtime.tensors.device import device


def move_trace_to_device(trace: Any, device_id: int) -> None:
    """Moves a traced model to the core with this index among those of the process. Raises ValueError without it."""
    set_neuron_cores(trace, device_id, 1)


def set_neuron_cores(trace: Any, start_nc: int = AUTOMATIC, nc_count: int = AUTOMATIC) -> None:
    """Moves a traced model to `nc_count` cores from the index `start_nc`. Executions take these cores in turn.

    -1 means the next core in turn, and one core. Raises ValueError for cores that the process does not have.
    """
    modules = neuron_modules(trace)
    cores = selected_cores(start_nc, nc_count)
    for module in modules:
        model_of(module.handle).load(cores)


def set_multicore(trace: Any) -> None:
    """Loads a traced model onto all cores of the process. Executions take the cores in turn."""
    set_neuron_cores(trace, 0, len(device.cores))


def neuron_cores_context(start_nc: int = AUTOMATIC, nc_count: int = AUTOMATIC) -> AbstractContextManager[None]:
    """Returns a context in which this thread loads models as `set_neuron_cores` does."""
    return placed(start_nc, nc_count)


def multicore_context() -> AbstractContextManager[None]:
    """Returns a context in which this thread loads models onto all cores of the process."""
    return placed(0, len(device.cores))


def lazy_load(trace: Any, enable_lazy_load: bool = True) -> None:
    """Makes `torch.jit.load` of the saved model leave the load to the first execution or to DataParallel."""
    for module in neuron_modules(trace):
        module.is_lazy = enable_lazy_load


def async_load(trace: Any, enable_async_load: bool = True) -> None:
    """Makes `torch.jit.load` of the saved model load it in a thread. The first execution waits for this thread."""
    for module in neuron_modules(trace):
        module.is_async = enable_async_load


def dynamic_batch(neuron_script: Any) -> Any:
    """Makes a traced model accept any batch size, and returns the model. Each execution has the traced batch size.

    Raises ValueError if the inputs and outputs have no common size of dimension 0.
    """
    for module in neuron_modules(neuron_script):
        model = model_of(module.handle)
        model.batch_size()
        model.is_dynamic = module.is_dynamic = True
    return neuron_script


def replace_weights(neuron_model: Any, weights: nn.Module | Mapping[str, Tensor]) -> None:
    """Replaces the weights of a model that was traced with `inline_weights_to_neff=False`. Warns for any other model.

    `weights` is the module with the new weights, or its `state_dict`. Raises ValueError for missing names and for other
    shapes.
    """
    new = weights.state_dict() if isinstance(weights, nn.Module) else dict(weights)
    for module in neuron_modules(neuron_model):
        model = model_of(module.handle)
        if not model.model.has_separate_weights:
            warnings.warn(
                "torch_neuronx.replace_weights: the weights of this model are part of its NEFF and stay as they are; "
                "trace it with inline_weights_to_neff=False",
                stacklevel=2,
            )
            continue
        model.replace_weights(new)
        module.weights = model.weights
