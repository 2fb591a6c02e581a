"""Lets optimizers, backward passes and meta kernels run without importing Dynamo and sympy, unless the script does.

torch's functions import Dynamo at their first call: those that torch excludes from compilation, to exclude themselves,
and the steps of optimizers, to break the graph. The import takes half the time of `import torch`. Neither call has an
effect in a process without Dynamo.

Many of torch's meta kernels import functions of `torch.fx.experimental.symbolic_shapes`, which imports sympy: 0.7 s of
CPU time. A stand-in for this module has the functions that they use, for sizes that are numbers.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._prims_common import elementwise_dtypes

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
            _change_import(step, _DYNAMO, _STAND_IN)


def _change_import(function: Any, package: str, stand_in: str) -> None:
    code = function.__code__
    _changed.append((function, code))
    function.__code__ = code.replace(co_names=tuple(stand_in if name == package else name for name in code.co_names))


def restore_functions() -> None:
    """Gives torch's functions their own code again. Call when Dynamo is imported, which may compile them."""
    vars(torch._compile).pop("getattr", None)
    while _changed:
        function, code = _changed.pop()
        function.__code__ = code


def _imports_dynamo(function: Any) -> bool:
    return _DYNAMO in getattr(getattr(function, "__code__", None), "co_names", ())


_SYMBOLIC_SHAPES, _SYMPY_STAND_IN = "torch.fx.experimental.symbolic_shapes", "neurontools_loaded_sympy"


def defer_symbolic_shapes() -> None:
    """Puts a stand-in for torch's symbolic shapes into `sys.modules`, unless they are loaded. Call once per process."""
    if _SYMBOLIC_SHAPES in sys.modules:
        return
    sys.modules[_SYMBOLIC_SHAPES] = _NumericShapes(_SYMBOLIC_SHAPES)
    sys.modules[_SYMPY_STAND_IN] = _LoadedSympy(_SYMPY_STAND_IN)
    _change_import(elementwise_dtypes, "sympy", _SYMPY_STAND_IN)


class _LoadedSympy(ModuleType):
    """Stands in for sympy where torch only asks whether a value is symbolic. Without sympy, no value is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(sys.modules.get("sympy"), name, _NoSymbol)


class _NoSymbol:
    pass


class _NumericShapes(ModuleType):
    """Stands in for symbolic shapes in functions of torch that import its functions when they are called.

    Any other use loads torch's own module in its place: another name, an import by a module, a symbolic argument.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = _NUMERIC_FUNCTIONS.get(name)
        if function is None or sys._getframe(1).f_code.co_name == "<module>":
            return getattr(_load_symbolic_shapes(), name)
        return function


def _load_symbolic_shapes() -> ModuleType:
    if isinstance(sys.modules.get(_SYMBOLIC_SHAPES), _NumericShapes):
        sys.modules.pop(_SYMBOLIC_SHAPES, None)
    return importlib.import_module(_SYMBOLIC_SHAPES)


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool(first == second)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_numeric, value))
    return value.__class__ is int or value.__class__ is bool


def _is_numeric_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _is_numeric((*value.shape, *value.stride(), value.storage_offset()))


def _for_numbers(
    name: str, function: Callable[..., Any], is_numeric: Callable[[Any], bool] = _is_numeric
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if all(map(is_numeric, arguments)):
            return function(*arguments)
        return getattr(_load_symbolic_shapes(), name)(*arguments)

    return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
    **dict.fromkeys(("expect_true", "statically_known_true"), bool),
    "guarding_hint_or_throw": lambda value: value,
    "has_guarding_hint": lambda _value: True,
    "is_nested_int": lambda _value: False,
    "sym_and": lambda *values: functools.reduce(operator.and_, values),
    "sym_or": lambda *values: functools.reduce(operator.or_, values),
    "sym_eq": _are_equal,
}
_NUMERIC_FUNCTIONS = {
    **{name: _for_numbers(name, function) for name, function in _FUNCTIONS.items()},
    "free_unbacked_symbols": _for_numbers("free_unbacked_symbols", lambda _tensor: frozenset(), _is_numeric_tensor),
}
