"""Cheap imports: lazy packages (PEP 562), and stand-ins for standard modules that are slow or large to import."""

from __future__ import annotations

import sys
from types import MemberDescriptorType, ModuleType

__all__ = [
    "Generic",
    "IntEnum",
    "LightEnum",
    "StrEnum",
    "TypeVar",
    "dataclass",
    "fields",
    "import_asyncio",
    "import_shutil",
    "install_dataclasses",
    "lazy_names",
    "replace",
]

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_ARCHIVE_MODULES = ("bz2", "lzma")
_MISSING = object()


def lazy_names(package: str, names: list[str], *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package that re-exports these names of its modules.

    Importing one module of the package does not import the others. A name is read from the first module that has it.
    """

    def get(name: str) -> Any:
        for module in modules if name in names else ():
            loaded = __import__(f"{package}.{module}", fromlist=["_"])
            if hasattr(loaded, name):
                value = getattr(loaded, name)
                setattr(sys.modules[package], name, value)  # the next read does not come here
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: names


# Generic and TypeVar without the import of typing. If typing is loaded already, they are the real ones.
if TYPE_CHECKING or "typing" in sys.modules:
    from typing import Generic, TypeVar
else:

    class Generic:
        """A base class that accepts a type parameter and ignores it."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def TypeVar(name: str) -> str:  # noqa: N802 - stands for typing's
        """Returns its name: the stand-in for Generic ignores type parameters."""
        return name


# dataclasses: importing it takes as long as starting Python, because it imports inspect; each class compiles code. A
# command that only builds objects and reads their fields needs an initializer, and neither comparison, hash nor repr.


class _Field:
    __slots__ = ("default", "name")

    def __init__(self, name: str, default: object) -> None:
        self.name = name
        self.default = default


def install_dataclasses() -> None:
    """Makes `import dataclasses` find the stand-in, unless the real module is loaded. For one-shot commands only."""
    module: Any = ModuleType("dataclasses", __doc__)
    module.dataclass, module.fields, module.replace = dataclass, fields, replace
    sys.modules.setdefault("dataclasses", module)


def dataclass(kind: type | None = None, /, **_options: object) -> Any:
    """Stands for dataclasses.dataclass. Ignores the options; a default is a value, not a factory."""
    return _add_initializer if kind is None else _add_initializer(kind)


def fields(kind: Any) -> tuple[_Field, ...]:
    """Stands for dataclasses.fields."""
    listed: tuple[_Field, ...] = kind.__light_fields__
    return listed


def replace(part: Any, /, **changes: object) -> Any:
    """Stands for dataclasses.replace."""
    copy = object.__new__(type(part))
    copy.__dict__.update(part.__dict__)
    copy.__dict__.update(changes)
    return copy


def _add_initializer(kind: Any) -> Any:
    listed = {field.name: field for field in getattr(kind, "__light_fields__", ())}
    for name in kind.__dict__.get("__annotations__", {}):  # noqa: RUF063 - the alternative imports inspect
        default = kind.__dict__.get(name, _MISSING)
        listed[name] = _Field(name, _MISSING if isinstance(default, MemberDescriptorType) else default)
    kind.__light_fields__ = tuple(listed.values())
    kind.__init__ = _initializer(
        tuple(listed),
        {field.name: field.default for field in listed.values() if field.default is not _MISSING},
        getattr(kind, "__post_init__", None),
    )
    return kind


def _initializer(
    names: Iterable[str], defaults: dict[str, object], post_init: Callable[[object], None] | None
) -> Callable[..., None]:
    def initialize(self: Any, *arguments: object, **named: object) -> None:
        values = self.__dict__
        values.update(defaults)
        values.update(zip(names, arguments))  # noqa: B905 - later fields come by name or have defaults
        values.update(named)
        if post_init is not None:
            post_init(self)

    return initialize


# enum: importing it takes a third of Python's start, because it imports functools and collections.


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
    """Stands for enum.IntEnum."""


class StrEnum(str, metaclass=_EnumType):
    """Stands for enum.StrEnum."""


class LightEnum:
    """A context in which `import enum` finds the stand-in, unless the real module is loaded.

    Standard modules need the real one, so only our modules may be imported inside.
    """

    def __enter__(self) -> None:
        module: Any = ModuleType("enum", __doc__)
        module.IntEnum, module.StrEnum = IntEnum, StrEnum
        self._module = module
        sys.modules.setdefault("enum", module)

    def __exit__(self, *_: object) -> None:
        if sys.modules.get("enum") is self._module:
            del sys.modules["enum"]


def import_asyncio() -> None:
    """Imports asyncio without TLS, which saves 4 MiB (OpenSSL). Does nothing special if ssl is loaded already.

    asyncio works as on a Python built without ssl. Importing ssl later still works, but asyncio won't use it.
    """
    modules: dict[str, Any] = sys.modules
    if "ssl" in modules:
        return
    modules["ssl"] = None
    try:
        import asyncio  # noqa: F401
    finally:
        del modules["ssl"]


def import_shutil() -> None:
    """Imports shutil without bzip2 and LZMA, whose libraries would stay in memory.

    shutil works as on a Python built without them. Importing bz2 or lzma later still works.
    """
    modules: dict[str, Any] = sys.modules
    left_out = [name for name in _ARCHIVE_MODULES if name not in modules]
    for name in left_out:
        modules[name] = None
    try:
        import shutil  # noqa: F401
    finally:
        for name in left_out:
            del modules[name]
