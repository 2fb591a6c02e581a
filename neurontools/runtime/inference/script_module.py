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
from neurontools.runtime.execution.rank_threads import current_membership
from neurontools.runtime.inference.loaded_model import NeuronModel
from neurontools.runtime.inference.structure import check_dictionaries, map_structure, tensors_of
from neurontools.runtime.inference.traced_model import TracedModel

_MODEL = "neuron_model"


class _Building(threading.local):
    """Whether this thread builds a module, so that nothing is executed."""

    is_active = False


_building = _Building()


def load_model(document: Tensor, weights: List[Tensor], is_lazy: bool, is_async: bool, is_dynamic: bool) -> Tensor:
    """Implements `neuron::load_model`. Returns an empty tensor that refers to a model of this process.

    Loads the model onto the cores of the context, unless `is_lazy`.
    """
    model = NeuronModel(TracedModel.from_json(bytes(document.numpy())), [*weights])
    model.is_dynamic = is_dynamic
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
    if _building.is_active:
        return model.empty_outputs()
    try:
        return model.execute(inputs)
    except BaseException as error:
        membership = current_membership()
        if membership is not None:
            membership[0].fail(error)  # TorchScript raises another error, of its own type
        raise


_library = torch.library.Library("neuron", "FRAGMENT")
_library.define("load_model(Tensor document, Tensor[] weights, bool is_lazy, bool is_async, bool is_dynamic) -> Tensor")
_library.define("forward_v2(Tensor[] inputs, Tensor model) -> Tensor[]")
_library.impl("load_model", load_model, "CompositeExplicitAutograd")
_library.impl("forward_v2", forward, "CompositeExplicitAutograd")


class NeuronModule(nn.Module):
    """The TorchScript module of one traced model: tensors in, tensors out. Saving keeps its flags."""

    document: Tensor
    handle: Tensor
    weights: List[Tensor]
    is_lazy: bool
    is_async: bool
    is_dynamic: bool

    def __init__(self, document: Tensor, weights: List[Tensor], handle: Tensor) -> None:
        super().__init__()
        self.document = document
        self.weights = weights
        self.handle = handle
        self.is_lazy = False
        self.is_async = False
        self.is_dynamic = False

    def forward(self, inputs: List[Tensor]) -> List[Tensor]:
        return torch.ops.neuron.forward_v2(inputs, self.handle)  # type: ignore[no-any-return]

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, List[Tensor], bool, bool, bool, bool]:
        return self.document, self.weights, self.is_lazy, self.is_async, self.is_dynamic, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, List[Tensor], bool, bool, bool, bool]) -> None:
        self.document = state[0]
        self.weights = state[1]
        self.is_lazy = state[2]
        self.is_async = state[3]
        self.is_dynamic = state[4]
        self.training = state[5]
        self.handle = torch.ops.neuron.load_model(
            self.document, self.weights, self.is_lazy, self.is_async, self.is_dynamic
        )


class _TracedFunction(nn.Module):
    """Flattens the arguments, calls a NeuronModule and builds the result. torch.jit.trace records its forward."""

    def __init__(self, model: Any, result: Any) -> None:
        super().__init__()
        self.model = model
        self._result = result
        self.tracer_modules: Any = None

    def forward(self, *arguments: Any) -> Any:
        self.tracer_modules = vars(torch.jit._trace).get("_trace_module_map")
        outputs = self.model([*tensors_of(arguments, "input")])
        return map_structure(self._result, outputs.__getitem__)


class BucketModule(nn.Module):
    """Several traced models and a TorchScript function that chooses one of them by the inputs.

    The function takes the list of input tensors, and returns the list for the model and the model's index.
    """

    def __init__(self, choose: Any, models: List[Any]) -> None:
        super().__init__()
        self.choose = choose
        self.models = nn.ModuleList(models)

    def forward(self, inputs: List[Tensor]) -> List[Tensor]:
        chosen, index = self.choose(inputs)
        outputs: List[Tensor] = []
        for position, model in enumerate(self.models):
            if position == int(index):
                outputs = model(chosen)
        return outputs


def build_module(model: NeuronModel, arguments: Tuple[Any, ...], result: Any) -> torch.jit.ScriptModule:
    """Returns a TorchScript module with the arguments and the result of the traced function. Executes nothing.

    `result` has an index into the outputs in place of each tensor.
    """
    with _building_module():
        return _with_structure(torch.jit.script(_neuron_module(model)), arguments, result)


def build_bucket_module(
    models: List[NeuronModel], choose: Any, arguments: Tuple[Any, ...], result: Any
) -> torch.jit.ScriptModule:
    """Returns a TorchScript module that runs the model that `choose` selects. All models have the same `result`."""
    with _building_module():
        module = torch.jit.script(BucketModule(choose, [_neuron_module(model) for model in models]))
        return _with_structure(module, arguments, result)


def _neuron_module(model: NeuronModel) -> NeuronModule:
    document = torch.frombuffer(bytearray(model.model.to_json()), dtype=torch.uint8)
    return NeuronModule(document, model.weights, _handle(model))


def _with_structure(module: Any, arguments: Tuple[Any, ...], result: Any) -> torch.jit.ScriptModule:
    check_dictionaries([result])
    function = _TracedFunction(module, result).eval()
    traced: torch.jit.ScriptModule = torch.jit.trace(function, arguments, check_trace=False, strict=False)
    if function.tracer_modules:
        # The tracer leaves this dictionary in a reference cycle. It would keep the model loaded until the garbage
        # collector runs.
        function.tracer_modules.clear()
    return traced


@contextmanager
def _building_module() -> Iterator[None]:
    _building.is_active = True
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch 2.13 deprecates TorchScript, which is the format of torch_neuronx.
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            yield
    finally:
        _building.is_active = False


def neuron_modules(module: Any) -> List[Any]:
    """Returns the NeuronModules in a module that torch_neuronx.trace or torch.jit.load returned.

    Raises TypeError if there are none.
    """
    parts = module.modules() if isinstance(module, nn.Module) else ()
    found = [each for each in parts if isinstance(getattr(each, "handle", None), Tensor)]
    if not found:
        raise TypeError(
            f"{type(module).__name__} is no traced model; pass what torch_neuronx.trace or torch.jit.load returned"
        )
    return found
