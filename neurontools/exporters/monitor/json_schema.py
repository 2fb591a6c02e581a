"""The JSON Schema of a record, made from its types."""

from __future__ import annotations

import types
from inspect import getdoc
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from neurontools.exporters.monitor.record_types import Record

_SCALARS: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def record_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) that every line of neuron-monitor meets."""
    definitions: dict[str, Any] = {}
    reference = _schema(Record, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "neuron-monitor record",
        **reference,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option, definitions) for option in arguments]}
    if not is_typeddict(hint):
        raise TypeError(f"no schema for {hint!r}")
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}  # stands for itself while its parts are made
        definitions[hint.__name__] = _object(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _object(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _schema(part, definitions) for name, part in get_type_hints(hint).items()}
    return {
        "type": "object",
        "description": " ".join((getdoc(hint) or "").split()),
        "properties": properties,
        "required": [name for name in properties if name in hint.__required_keys__],
    }
