"""Any message of a kind, made from its descriptor, with values at and beyond the bounds of what makes sense."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from neurontools.rpc import neuron_pb2 as pb

M = TypeVar("M", bound=Message)
UUID = "0123456789abcdef" * 2

_MEANT = st.integers(0, 40)
# Mostly small: a message has so many fields that otherwise hardly one would be in range throughout.
_UINT64 = st.one_of(*[st.integers(0, 40 + spread) for spread in range(20)], st.sampled_from([2**63 - 1, 2**64 - 1]))
_UINT32 = _MEANT | st.integers(0, 2**32 - 1)
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 5),
    FieldDescriptor.TYPE_DOUBLE: st.floats(0, 100) | st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=20) | st.just(UUID),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20),
}


def messages(kind: type[M]) -> st.SearchStrategy[M]:
    """Messages of this kind; every field is there or not."""
    return _fields(kind.DESCRIPTOR).map(lambda values: kind(**values))


def _fields(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    choices = {}
    numbers = set()
    for field in descriptor.fields:
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            if field.containing_oneof.name in numbers:
                continue
            numbers.add(field.containing_oneof.name)
        value = _fields(field.message_type) if field.message_type else _VALUES[field.type]
        choices[field.name] = st.lists(value, max_size=3) if _is_repeated(field) else value
    return st.fixed_dictionaries({}, optional=choices)


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


def mended(report: pb.Report) -> pb.Report:
    """With what hardly any random report gets right."""
    report.measured_at_seconds = 5.0
    del report.cores[2:]
    for index, reported in enumerate(report.cores):
        reported.local_index = index
        reported.busy_seconds_total = 1.0
    for index, loaded_ in enumerate(report.models):
        loaded_.model_id, loaded_.uuid, loaded_.last_execution_at_unix_seconds = index, UUID, 4.0
    return report
