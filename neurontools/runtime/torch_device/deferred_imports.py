"""Lets optimizers, backward passes and meta kernels run without importing Dynamo, unless the script imports it.

torch's functions import Dynamo at their first call: those that torch excludes from compilation, to exclude themselves,
and the steps of optimizers, to break the graph. The import takes half the time of `import torch`. Neither call has an
effect in a process without Dynamo.
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import torch

_DYNAMO, _STAND_IN = "torch._dynamo", "neurontools_torch_without_dynamo"
_changed: list[tuple[Any, CodeType]] = []


class _TorchWithoutDynamo(ModuleType):
    """The module torch, with a Dynamo whose `graph_break` does nothing.

    It doesn't look for a loaded Dynamo: while one thread imports Dynamo, other threads would find an unfinished module.
    """

    _dynamo = SimpleNamespace(graph_break=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def defer_dynamo() -> None:
    """Changes the functions of torch that import Dynamo. Call once per process."""
    if _DYNAMO in sys.modules:
        return
    # The excluded functions look up their exclusion by `getattr`, a global name of their module.
    vars(torch._compile)["getattr"] = lambda function, _name, _default: function
    sys.modules[_STAND_IN] = _TorchWithoutDynamo(_STAND_IN)
    for kind in vars(torch.optim).values():
        # The local name `torch` of a step is bound by its `import torch._dynamo`.
        step: Any = inspect.unwrap(getattr(kind, "step", int), stop=_imports_dynamo)
        if _imports_dynamo(step):
            code = step.__code__
            _changed.append((step, code))
            names = tuple(_STAND_IN if name == _DYNAMO else name for name in code.co_names)
            step.__code__ = code.replace(co_names=names)


def restore_functions() -> None:
    """Gives torch's functions their own code again. Call when Dynamo is imported, which may compile them."""
    vars(torch._compile).pop("getattr", None)
    while _changed:
        function, code = _changed.pop()
        function.__code__ = code


def _imports_dynamo(function: Any) -> bool:
    return _DYNAMO in getattr(getattr(function, "__code__", None), "co_names", ())
