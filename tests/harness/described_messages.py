"""Messages of protobuf that others define, made from a short description of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def message_class(messages: Mapping[str, str], name: str) -> Any:
    """The class of one of these messages, each of which is described by its fields: `name number type; …`.

    A type is that of a scalar or the name of a message; + for repeated ones.
    """
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="described.proto", package="described", syntax="proto3")
    for message, fields in messages.items():
        descriptor = file.message_type.add(name=message)
        for text in fields.split("; "):
            field, number, kind = text.split()
            label = types.LABEL_REPEATED if kind.endswith("+") else types.LABEL_OPTIONAL
            kind = kind.rstrip("+")
            added = descriptor.field.add(name=field, number=int(number), label=label)
            if kind in messages:
                added.type, added.type_name = types.TYPE_MESSAGE, f".described.{kind}"
            else:
                added.type = types.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"described.{name}"))
