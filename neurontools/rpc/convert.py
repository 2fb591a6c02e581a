"""Converts between the model and the messages of the gRPC API, by field name.

The first conversion of a dataclass makes its plan, which checks that model and proto have the same fields. To add a
metric, add a field to the dataclass and to neuron.proto; nothing here changes.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from neurontools import model
from neurontools.rpc import neuron_pb2

_READS_UNTIL_COMPILED = 300
"""Number of messages of a type that are read before its reader is compiled.

Compiling pays off for a live view, but not for the one snapshot of neuron-ls.
"""

_SNAPSHOTS_UNTIL_COMPILED = 10
"""Number of snapshots that a view reads before the readers of all types in them are compiled.

A snapshot has one message of some types, so these would not be compiled in the first minutes of the view.
"""

_MOST_REMEMBERED = 1024
_LONGEST_REMEMBERED_BYTES = 200
_MISSES_AT_FIRST, _MISSES_RATIO = 160, 0.125
"""Beyond this many misses, plus this share of the look-ups, parts of a type are no longer cached.

Which types of parts rarely change depends on the host.
"""


class _Plan:
    """Converts one dataclass to its protobuf message and back, field by field."""

    def __init__(self, kind: type, late: frozenset[type] = frozenset()) -> None:
        """`late` has the dataclasses whose fields are decoded only when they are read; a `_LatePlan` does this."""
        self.kind = kind
        self._late = late
        self.message: type[Message] = getattr(neuron_pb2, kind.__name__)
        self.read: Callable[[Any], Any] = self._read
        # Converts a message that is a field of another message, possibly with the help of a cache.
        self.convert: Callable[[Any], Any] = self._convert_uncached
        self._reads = 0
        self._recalls = self._misses = 0
        self._recalled: dict[bytes, Any] = {}
        self.scalars: list[str] = []
        self.optional: list[str] = []
        self.repeated: list[str] = []
        self.enums: list[tuple[str, type[Enum]]] = []
        self.parts: list[tuple[str, bool, _Plan]] = []
        self.repeated_parts: list[tuple[str, _Plan]] = []
        hints = get_type_hints(kind)
        for field in fields(kind):
            self._add(field.name, hints[field.name])
        described = {field.name for field in self.message.DESCRIPTOR.fields}
        named = {field.name for field in fields(kind)}
        if described != named:
            raise TypeError(f"{kind.__name__} and its message differ in {sorted(described ^ named)}")

    def _add(self, name: str, hint: Any) -> None:
        optional = False
        if get_origin(hint) in (Union, types.UnionType):
            optional = True
            (hint,) = (option for option in get_args(hint) if option is not type(None))
        if get_origin(hint) is tuple:
            item = get_args(hint)[0]
            if is_dataclass(item):
                self.repeated_parts.append((name, self._plan_of(cast(type, item))))
            else:
                self.repeated.append(name)
        elif is_dataclass(hint):
            self.parts.append((name, optional, self._plan_of(cast(type, hint))))
        elif issubclass(hint, Enum):
            self.enums.append((name, hint))
        else:
            # Some fields that may be None in the model have no presence in protobuf. A message always has their value.
            is_absent_sometimes = optional and self.message.DESCRIPTOR.fields_by_name[name].has_presence
            (self.optional if is_absent_sometimes else self.scalars).append(name)

    def _plan_of(self, kind: type) -> _Plan:
        return _LatePlan(kind, self._late) if kind in self._late else _plan(kind)

    def fill(self, message: Any, part: Any) -> None:
        for name in self.scalars:
            setattr(message, name, getattr(part, name))
        for name in self.optional:
            value = getattr(part, name)
            if value is not None:
                setattr(message, name, value)
        for name in self.repeated:
            values = getattr(part, name)
            if values:
                getattr(message, name).extend(values)
        for name, enum in self.enums:
            setattr(message, name, _prefix(enum) + getattr(part, name).name)
        for name, optional, plan in self.parts:
            value = getattr(part, name)
            if value is not None:
                target = getattr(message, name)
                if optional:
                    target.SetInParent()
                plan.fill(target, value)
        for name, plan in self.repeated_parts:
            target = getattr(message, name)
            for value in getattr(part, name):
                plan.fill(target.add(), value)

    def _read(self, message: Any) -> Any:
        self._reads += 1
        if self._reads == _READS_UNTIL_COMPILED:
            self.read = self._compiled()
        values: dict[str, Any] = {name: getattr(message, name) for name in self.scalars}
        for name in self.optional:
            values[name] = getattr(message, name) if message.HasField(name) else None
        for name in self.repeated:
            values[name] = tuple(getattr(message, name)[:])
        for name, enum in self.enums:
            values[name] = enum[_enum_name(message, name).removeprefix(_prefix(enum))]
        for name, optional, plan in self.parts:
            absent = optional and not message.HasField(name)
            values[name] = None if absent else plan.convert(getattr(message, name))
        for name, plan in self.repeated_parts:
            values[name] = tuple([plan.convert(item) for item in getattr(message, name)[:]])
        return self.kind(**values)

    def read_repeatedly(self, message: Any) -> Any:
        """Reads a message, one of many, and compiles the readers of all its parts after the first few messages."""
        if self._reads >= _SNAPSHOTS_UNTIL_COMPILED and self.read == self._read:
            self._compile_used()
        return self.read(message)

    def _compile_used(self) -> None:
        if self.read == self._read and self._reads:
            self.read, self.convert = self._compiled(), self._convert_cached
        for plan in [plan for _, _, plan in self.parts] + [plan for _, plan in self.repeated_parts]:
            plan._compile_used()  # noqa: SLF001 - of the same class

    def check(self, message: Any, most_parts: int) -> int:
        """Raises ValueError for an unknown enum value, or for more than `most_parts` items in repeated fields.

        Returns how many more items would have been allowed.
        """
        for name, _ in self.enums:
            _enum_name(message, name)
        for name, optional, plan in self.parts:
            if not optional or message.HasField(name):
                most_parts = plan.check(getattr(message, name), most_parts)
        for name, plan in self.repeated_parts:
            items = getattr(message, name)
            most_parts -= len(items)
            if most_parts < 0:
                raise ValueError(f"{self.message.DESCRIPTOR.name}.{name} has too many parts")
            for item in items:
                most_parts = plan.check(item, most_parts)
        return most_parts

    def _convert_uncached(self, message: Any) -> Any:
        found = self.read(message)
        if self._reads >= _READS_UNTIL_COMPILED:
            self.convert = self._convert_cached
        return found

    def _convert_cached(self, message: Any) -> Any:
        """Returns the part from the cache, or decodes and caches it. Parts are frozen, so snapshots can share them."""
        content = message.SerializeToString()
        self._recalls += 1
        found = self._recalled.get(content)
        if found is None:
            found = self.read(message)
            self._misses += 1
            if self._misses > _MISSES_AT_FIRST + _MISSES_RATIO * self._recalls:
                self._recalled.clear()
                self.convert = self.read
            elif len(content) <= _LONGEST_REMEMBERED_BYTES:
                if len(self._recalled) >= _MOST_REMEMBERED:
                    self._recalled.clear()
                self._recalled[content] = found
        return found

    def _compiled(self) -> Callable[[Any], Any]:
        """Generates a function for this dataclass that does the same as `_read` in less time, and compiles it."""
        names, values = self._expressions()
        for name, optional, plan in self.parts:
            names[f"plan_{name}"] = plan
            read = f"plan_{name}.convert(m.{name})"
            values[name] = f"{read} if has({name!r}) else None" if optional else read
        for name, plan in self.repeated_parts:
            names[f"plan_{name}"] = plan
            values[name] = f"tuple([plan_{name}.convert(part) for part in parts[:]]) if (parts := m.{name}) else ()"
        return _compile_function(self.kind, names, [f"part.{name} = {value}" for name, value in values.items()])

    def _expressions(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns names for the generated code, and for each field the expression that reads it from a message `m`.

        Fields that are messages themselves have no expression here.
        """
        names: dict[str, Any] = {"enum_name": _enum_name}
        values = {name: f"m.{name}" for name in self.scalars}
        # Most optional values are there and not 0, so that HasField, which is slow, need not be asked.
        values |= {name: f"value if (value := m.{name}) or has({name!r}) else None" for name in self.optional}
        # The iterator of a repeated field ends in an exception, which takes longer than all of a slice.
        values |= {name: f"tuple(value[:]) if (value := m.{name}) else ()" for name in self.repeated}
        for name, enum in self.enums:
            names[f"enum_{name}"] = {_prefix(enum) + member.name: member for member in enum}
            values[name] = f"enum_{name}[enum_name(m, {name!r})]"
        return names, values


class _LatePlan(_Plan):
    """Converts a message to an object that keeps the message, and decodes a field that is a message on first access."""

    def __init__(self, kind: type, late: frozenset[type] = frozenset()) -> None:
        super().__init__(kind, late)
        self.read = self.convert = self._compiled()

    def _compiled(self) -> Callable[[Any], Any]:
        kind = self.kind
        parts = {name: plan for name, _, plan in self.parts}
        repeated = dict(self.repeated_parts)

        def late(part: Any, name: str) -> Any:
            """Decodes a field that was not accessed before, and stores its value. It is the object's `__getattr__`."""
            message = part._message  # noqa: SLF001
            if name in parts:
                value = parts[name].convert(getattr(message, name))
            elif name in repeated:
                found = getattr(message, name)
                value = tuple([repeated[name].convert(each) for each in found[:]]) if found else ()
            else:
                raise AttributeError(name)
            object.__setattr__(part, name, value)
            return value

        # `__class__` is the dataclass, so that the object equals a completely decoded one, and `replace` works.
        own = {"__slots__": ("_message",), "__getattr__": late, "__class__": property(lambda _self: kind)}
        late_type = type(kind.__name__, (kind,), own)
        names, values = self._expressions()
        statements = [f"part.{name} = {value}" for name, value in values.items()]
        statements += [f"if not has({name!r}): part.{name} = None" for name, optional, _ in self.parts if optional]
        return _compile_function(late_type, names, [*statements, "part._message = m"])


def _compile_function(kind: type, names: dict[str, Any], statements: list[str]) -> Callable[[Any], Any]:
    """Compiles a function that makes an object of a frozen dataclass from a message `m`.

    The statements set the fields of `part`. Until then, `part` is of a class that is not frozen: the constructor of a
    frozen dataclass takes longer, because it sets each field by a call.
    """
    unfrozen = {name: vars(object)[name] for name in ("__class__", "__setattr__", "__delattr__")}
    names |= {
        "new": object.__new__,
        "kind": kind,
        "unfrozen": type(kind.__name__, (kind,), {"__slots__": (), **unfrozen}),
    }
    lines = ["has = m.HasField", "part = new(unfrozen)", *statements, "part.__class__ = kind", "return part"]
    # exec is safe here: the source contains only field names of our own dataclasses.
    exec("def read(m):\n    " + "\n    ".join(lines), names)  # noqa: S102
    return cast(Callable[[Any], Any], names["read"])


def _prefix(enum: type[Enum]) -> str:
    """Returns the prefix of an enum's names in neuron.proto, such as SOURCE_KIND_ for SourceKind."""
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.__name__)[1:] + "_"


def _enum_name(message: Any, field: str) -> str:
    number = getattr(message, field)
    value = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    if value is None or value.name.endswith("_UNSPECIFIED"):
        raise ValueError(f"{message.DESCRIPTOR.name}.{field} is {number}, which this version doesn't know")
    return cast(str, value.name)


_plans: dict[type, _Plan] = {}


def _plan(kind: type) -> _Plan:
    if kind not in _plans:
        _plans[kind] = _Plan(kind)
    return _plans[kind]


def to_message(part: Any) -> Any:
    plan = _plan(type(part))
    message = plan.message()
    plan.fill(message, part)
    return message


T = TypeVar("T")


def from_message(kind: type[T], message: Message) -> T:
    """Converts a protobuf message to an object of the dataclass with the same name.

    Raises ValueError for enum values that this version does not have.
    """
    return cast(T, _plan(kind).read(message))


def check_snapshot(message: neuron_pb2.Snapshot, most_parts: int) -> None:
    """Raises ValueError if a snapshot has an invalid enum value, or over `most_parts` items in repeated fields."""
    _plan(model.Snapshot).check(message, most_parts)


def snapshot_on_demand(message: neuron_pb2.Snapshot) -> model.Snapshot:
    """Converts the message of a snapshot, but decodes the parts of its processes only on access. Keeps the message.

    This suits views of the latest snapshot: most of a snapshot is in these parts, and a view shows few of them.
    """
    return cast(model.Snapshot, _on_demand().read_repeatedly(message))


@cache
def _on_demand() -> _Plan:
    return _Plan(model.Snapshot, frozenset((model.Process, model.LoadedModel)))
