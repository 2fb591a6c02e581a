"""torch.compile(backend="neuron") and ("openxla"): each captured graph is one graph of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.device import device

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


def install() -> None:
    """Makes torch.compile know the backends; once a process. Importing torch._dynamo for it would cost a second."""
    original = torch.compile

    @functools.wraps(original)
    def compile_(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") in BACKENDS:
            keywords["backend"] = backend
            keywords.pop("mode", None)
            keywords.pop("options", None)
        return original(*arguments, **keywords)

    torch.compile = compile_
