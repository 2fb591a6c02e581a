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
    value = _without_cache(value)
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
    value = _without_cache(value)
    if isinstance(value, Mapping):
        return {key: map_structure(item, change) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return change(value)
    items = [map_structure(item, change) for item in value]
    return items if isinstance(value, list) else tuple(items)


def check_dictionaries(structure: Any) -> None:
    """Raises UnsupportedStructure for a dictionary with tensors and other values, which TorchScript can't return."""
    items = list(structure.values() if isinstance(structure, dict) else structure)
    nested = [item for item in items if isinstance(item, (dict, list, tuple))]
    if isinstance(structure, dict) and 0 < len(nested) < len(items):
        raise UnsupportedStructure(
            f"torch_neuronx.trace: output has tensors and other values under the keys {[*structure]}; a TorchScript "
            "dictionary has values of one type: return a tuple (return_dict=False), or only tensors (use_cache=False)"
        )
    for item in nested:
        check_dictionaries(item)


def _without_cache(value: Any) -> Any:
    """Returns a key-value cache of transformers as a tuple with the keys and values of each layer."""
    layers = getattr(value, "layers", None) if type(value).__name__.endswith("Cache") else None
    return value if layers is None else tuple((layer.keys, layer.values) for layer in layers)


def as_arguments(example_inputs: Any) -> tuple[Any, ...]:
    """Returns example inputs as positional arguments. A tensor, list or dictionary is one argument."""
    if isinstance(example_inputs, tuple):
        return example_inputs
    return (example_inputs,)
