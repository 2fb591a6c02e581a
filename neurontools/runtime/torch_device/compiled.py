"""torch.compile(backend="neuron") and ("openxla"): each captured graph is one graph of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.tensors.device import device

BACKENDS = ("neuron", "openxla")


def backend(graph_module: Any, _example_inputs: Any, **_options: Any) -> Callable[..., Any]:
    """What torch.compile calls with a captured graph: the same operators, executed together when they are recorded.

    Nothing is decomposed or functionalised, so results equal those without torch.compile bit for bit.
    """

    def run(*arguments: Any) -> Any:
        device.flush_all("BeforeCompiledGraph")
        device.enter_lazy_scope()
        try:
            return graph_module.forward(*arguments)
        finally:
            device.leave_lazy_scope()

    return run


def _by_device(mode: Any, options: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
    """torch.compile without a backend: inductor has no code for the device, so its graphs are the device's own."""

    def choose(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        tensors = [*example_inputs, *graph_module.parameters(), *graph_module.buffers()]
        if any(isinstance(t, torch.Tensor) and t.device.type == device.name for t in tensors):
            return backend(graph_module, example_inputs)
        wrapper: Any = torch._TorchCompileInductorWrapper
        inductor = wrapper(mode if options else mode or "default", options, keywords.get("dynamic"), None)
        return inductor(graph_module, example_inputs)  # type: ignore[no-any-return]

    return choose


def install() -> None:
    """Makes torch.compile know the backends; once a process. Importing torch._dynamo for it would cost a second."""
    original = torch.compile

    @functools.wraps(original)
    def compile_(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") in BACKENDS:
            keywords["backend"] = backend
            keywords.pop("mode", None)
            keywords.pop("options", None)
        elif keywords.get("backend", "inductor") == "inductor" and len(arguments) <= 1:
            keywords["backend"] = _by_device(keywords.pop("mode", None), keywords.pop("options", None), keywords)
        return original(*arguments, **keywords)

    torch.compile = compile_
