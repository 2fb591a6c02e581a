"""Traced models as TorchScript modules: `torch.jit.save` and `torch.jit.load` work without the class of the model.

A saved model holds the document and the weights of a traced model, and calls the operators `neuron::load_model` and
`neuron::forward_v2`. The result of `load_model` is a tensor that refers to the model in this process. torch keeps the
Python object of a tensor as long as the tensor is alive, so the model lives as long as the TorchScript module.

TorchScript reads the annotations of this module, so they are not postponed.
"""
# ruff: noqa: UP006, UP035

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, List, Tuple

import torch
from torch import Tensor, nn

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.policy import ExecutionFailed
from neurontools.runtime.inference.loaded_model import NeuronModel
from neurontools.runtime.inference.structure import map_structure, tensors_of
from neurontools.runtime.inference.traced_model import TracedModel

_MODEL = "neuron_model"


class _Building(threading.local):
    """The model of the module that this thread builds, instead of a model that `load_model` creates."""

    model: Any = None


_building = _Building()


def load_model(document: Tensor, weights: List[Tensor], is_lazy: bool, is_async: bool) -> Tensor:
    """Implements `neuron::load_model`. Returns an empty tensor that refers to a model of this process.

    Loads the model onto the cores of the context, unless `is_lazy`.
    """
    model = NeuronModel(TracedModel.from_json(bytes(document.numpy())), [*weights])
    if not is_lazy:
        model.load(is_async=is_async)
    return _handle(model)


def _handle(model: NeuronModel) -> Tensor:
    handle = torch.empty(0, dtype=torch.uint8)
    setattr(handle, _MODEL, model)
    return handle


def model_of(handle: Tensor) -> NeuronModel:
    """Returns the model that a handle refers to. Raises ExecutionFailed for any other tensor."""
    model = getattr(handle, _MODEL, None)
    if not isinstance(model, NeuronModel):
        raise ExecutionFailed(
            NrtStatus.INVALID,
            "this tensor refers to no traced model of this process; load the model with torch.jit.load",
        )
    return model


def forward(inputs: List[Tensor], handle: Tensor) -> List[Tensor]:
    """Implements `neuron::forward_v2`: executes a model. While its module is built, only returns zeros."""
    model = model_of(handle)
    is_building = _building.model is model
    return model.empty_outputs() if is_building else model.execute(inputs)


_library = torch.library.Library("neuron", "FRAGMENT")
_library.define("load_model(Tensor document, Tensor[] weights, bool is_lazy, bool is_async) -> Tensor")
_library.define("forward_v2(Tensor[] inputs, Tensor model) -> Tensor[]")
_library.impl("load_model", load_model, "CompositeExplicitAutograd")
_library.impl("forward_v2", forward, "CompositeExplicitAutograd")


class NeuronModule(nn.Module):
    """The TorchScript module of one traced model: tensors in, tensors out.

    `dynamic_batch_size` is the traced batch size if the module accepts other batch sizes, otherwise 0.
    """

    document: Tensor
    handle: Tensor
    weights: List[Tensor]
    is_lazy: bool
    is_async: bool
    dynamic_batch_size: int

    def __init__(self, document: Tensor, weights: List[Tensor], handle: Tensor) -> None:
        super().__init__()
        self.document = document
        self.weights = weights
        self.handle = handle
        self.is_lazy = False
        self.is_async = False
        self.dynamic_batch_size = 0

    def forward(self, inputs: List[Tensor]) -> List[Tensor]:
        return torch.ops.neuron.forward_v2(inputs, self.handle)  # type: ignore[no-any-return]

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, List[Tensor], bool, bool, int, bool]:
        return self.document, self.weights, self.is_lazy, self.is_async, self.dynamic_batch_size, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, List[Tensor], bool, bool, int, bool]) -> None:
        self.document = state[0]
        self.weights = state[1]
        self.is_lazy = state[2]
        self.is_async = state[3]
        self.dynamic_batch_size = state[4]
        self.training = state[5]
        self.handle = torch.ops.neuron.load_model(self.document, self.weights, self.is_lazy, self.is_async)


class _TracedFunction(nn.Module):
    """Flattens the arguments, calls a NeuronModule and builds the result. torch.jit.trace records its forward."""

    def __init__(self, model: Any, result: Any) -> None:
        super().__init__()
        self.model = model
        self._result = result

    def forward(self, *arguments: Any) -> Any:
        outputs = self.model([*tensors_of(arguments, "input")])
        return map_structure(self._result, outputs.__getitem__)


def build_module(model: NeuronModel, arguments: Tuple[Any, ...], result: Any) -> torch.jit.ScriptModule:
    """Returns a TorchScript module with the arguments and the result of the traced function. Executes nothing.

    `result` has an index into the outputs in place of each tensor.
    """
    document = torch.frombuffer(bytearray(model.model.to_json()), dtype=torch.uint8)
    with _built(model), torch.no_grad(), warnings.catch_warnings():
        # torch 2.13 deprecates TorchScript, which is the format of torch_neuronx.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        module = torch.jit.script(NeuronModule(document, model.weights, _handle(model)))
        traced: torch.jit.ScriptModule = torch.jit.trace(
            _TracedFunction(module, result).eval(), arguments, check_trace=False, strict=False
        )
        return traced


@contextmanager
def _built(model: NeuronModel) -> Iterator[None]:
    _building.model = model
    try:
        yield
    finally:
        _building.model = None


def neuron_modules(module: Any) -> List[Any]:
    """Returns the NeuronModules in a module that torch_neuronx.trace or torch.jit.load returned. Maybe none."""
    return [each for each in module.modules() if isinstance(getattr(each, "handle", None), Tensor)]
