"""The structure of a traced function's inputs and outputs: nested tuples, lists and dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


class UnsupportedStructure(TypeError):
    """A value is neither a tensor nor a tuple, list or dictionary of tensors. The message names its place."""


def tensors_of(value: Any, place: str) -> Iterator[Tensor]:
    """Yields the tensors of a nested value in order. Raises UnsupportedStructure for anything that is no tensor.

    `place` names the value in the error, such as `output`.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, f"{place}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_of(item, f"{place}[{index}]")
    else:
        raise UnsupportedStructure(
            f"torch_neuronx.trace: {place} is a {type(value).__name__}; only tensors, and tuples, lists or dicts "
            "of them can be traced; wrap the model in a module that takes and returns those"
        )


def map_structure(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a nested value with each leaf replaced. Mappings become dictionaries, named tuples become tuples."""
    if isinstance(value, Mapping):
        return {key: map_structure(item, change) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return change(value)
    items = [map_structure(item, change) for item in value]
    return items if isinstance(value, list) else tuple(items)


def as_arguments(example_inputs: Any) -> tuple[Any, ...]:
    """Returns example inputs as positional arguments. A tensor, list or dictionary is one argument."""
    if isinstance(example_inputs, tuple):
        return example_inputs
    return (example_inputs,)
