"""Any part of the model."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from neurontools.rpc import neuron_pb2 as pb

_WIDTHS = {"TYPE_INT32": (-(2**31), 2**31 - 1), "TYPE_UINT32": (0, 2**32 - 1), "TYPE_UINT64": (0, 2**64 - 1)}


def parts(kind: type) -> st.SearchStrategy[Any]:
    """Any part of the model, made from its type hints; integers within the width of the message's field."""
    hints = get_type_hints(kind)
    described = getattr(pb, kind.__name__).DESCRIPTOR.fields_by_name
    return st.builds(kind, **{field.name: _values(hints[field.name], described[field.name]) for field in fields(kind)})


def _values(hint: Any, described: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = (option for option in get_args(hint) if option is not type(None))
        return st.none() | _values(kind, described)
    if get_origin(hint) is tuple:
        return st.lists(_values(get_args(hint)[0], described), max_size=2).map(tuple)
    if is_dataclass(hint):
        return parts(hint)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if hint is int:
        names = {getattr(described, name): name for name in ("TYPE_INT32", "TYPE_UINT32", "TYPE_UINT64")}
        low, high = _WIDTHS[names[described.type]]
        return st.just(0) | st.integers(low, high)
    simple: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
    }
    return simple[hint]
