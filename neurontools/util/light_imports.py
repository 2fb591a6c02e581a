"""Faster imports: lazy packages (PEP 562), and light replacements of standard modules that are slow to import."""

from __future__ import annotations

import sys
from types import MemberDescriptorType, ModuleType, SimpleNamespace

TYPE_CHECKING = False  # defined here, because importing it from `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_MISSING = object()


def lazy_names(package: str, names: list[str], *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package that re-exports names of its modules lazily.

    The first read of a name imports `modules` in this order, until one of them has the name.
    """

    def get(name: str) -> Any:
        for module in modules if name in names else ():
            loaded = __import__(f"{package}.{module}", fromlist=["_"])
            if hasattr(loaded, name):
                value = getattr(loaded, name)
                setattr(sys.modules[package], name, value)  # for later reads, instead of __getattr__
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: names


# Replaces Generic and TypeVar unless typing is already loaded, because importing typing takes several milliseconds.
if TYPE_CHECKING or "typing" in sys.modules:
    from typing import Generic as Generic  # noqa: PLC0414 - this module exports the name
    from typing import TypeVar as TypeVar  # noqa: PLC0414
else:

    class Generic:
        """Replaces typing.Generic: a base class that ignores its type parameters."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def TypeVar(name: str) -> str:  # noqa: N802 - has the name of typing.TypeVar
        """Replaces typing.TypeVar. Returns only its name, because the light Generic ignores type parameters."""
        return name


# Importing dataclasses takes as long as starting Python, because it imports inspect, and each dataclass compiles code.
# A command that only builds objects and reads their fields needs an initializer, but no comparison, hash or repr.


def install_dataclasses() -> None:
    """Makes `import dataclasses` import the light replacement, unless the real module is loaded.

    Only for commands that exit after one output.
    """
    module: Any = ModuleType("dataclasses", __doc__)
    module.dataclass, module.fields, module.replace = dataclass, fields, replace
    sys.modules.setdefault("dataclasses", module)


def dataclass(kind: type | None = None, /, **_options: object) -> Any:
    """Replaces dataclasses.dataclass. Adds only an initializer, ignores options, and lacks default factories."""
    return _add_initializer if kind is None else _add_initializer(kind)


def fields(kind: Any) -> tuple[SimpleNamespace, ...]:
    """Replaces dataclasses.fields. The fields of a light dataclass have only `name` and `default`."""
    listed: tuple[SimpleNamespace, ...] = kind.__light_fields__
    return listed


def replace(part: Any, /, **changes: object) -> Any:
    """Replaces dataclasses.replace: returns a copy of an object with some fields changed."""
    copy = object.__new__(type(part))
    copy.__dict__.update(part.__dict__)
    copy.__dict__.update(changes)
    return copy


def _add_initializer(kind: Any) -> Any:
    listed = {field.name: field for field in getattr(kind, "__light_fields__", ())}
    for name in kind.__dict__.get("__annotations__", {}):  # noqa: RUF063 - the alternative imports inspect
        default = kind.__dict__.get(name, _MISSING)
        is_slot = isinstance(default, MemberDescriptorType)
        listed[name] = SimpleNamespace(name=name, default=_MISSING if is_slot else default)
    kind.__light_fields__ = tuple(listed.values())
    names = tuple(listed)
    defaults = {field.name: field.default for field in listed.values() if field.default is not _MISSING}
    post_init = getattr(kind, "__post_init__", None)

    def initialize(self: Any, *arguments: object, **named: object) -> None:
        values = self.__dict__
        values.update(defaults)
        values.update(zip(names, arguments))  # noqa: B905 - the other fields are passed by name or have defaults
        values.update(named)
        if post_init is not None:
            post_init(self)

    kind.__init__ = initialize
    return kind


# Importing enum takes a third of Python's start time, because it imports functools and collections.


class _EnumType(type):
    _members: dict[str, Any]
    _by_value: dict[object, Any]

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
        super().__init__(name, bases, body)
        cls._members, cls._by_value = {}, {}
        for key, value in body.items():
            if not key.startswith("_") and isinstance(value, int | str):
                member: Any = cls.__new__(cls, value)  # type: ignore[call-overload]
                member.name, member.value = key, value
                cls._members[key] = cls._by_value[value] = member
                setattr(cls, key, member)

    def __call__(cls, value: object) -> Any:
        try:
            return cls._by_value[value]
        except KeyError:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}") from None

    def __getitem__(cls, name: str) -> Any:
        return cls._members[name]

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls._members.values())


class IntEnum(int, metaclass=_EnumType):
    """Light replacement of enum.IntEnum."""


class StrEnum(str, metaclass=_EnumType):
    """Light replacement of enum.StrEnum."""


class LightEnum:
    """A context manager in which `import enum` imports the light replacement, unless the real module is loaded.

    Only modules of neurontools may be imported inside, because standard modules need the real enum.
    """

    def __enter__(self) -> None:
        module: Any = ModuleType("enum", __doc__)
        module.IntEnum, module.StrEnum = IntEnum, StrEnum
        self._module = module
        sys.modules.setdefault("enum", module)

    def __exit__(self, *_: object) -> None:
        if sys.modules.get("enum") is self._module:
            del sys.modules["enum"]


def import_without(module: str, *optional: str) -> None:
    """Imports a standard module without its optional imports, such as asyncio without ssl, which saves 4 MiB.

    The module works as in a Python built without the `optional` modules. Importing them later works, but the module
    does not use them. Has no effect on `optional` modules that are already loaded.
    """
    modules: dict[str, Any] = sys.modules
    left_out = [name for name in optional if name not in modules]
    for name in left_out:
        modules[name] = None
    try:
        __import__(module)
    finally:
        for name in left_out:
            del modules[name]
