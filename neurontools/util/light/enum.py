"""A stand-in for the standard library's enum in a one-shot command that ends right after.

Importing enum takes a third of what starting Python takes (it imports functools and collections). What names how grave
a finding is needs members that have a name, are found by it or by their value, are listed and are numbers or texts.
Modules of the standard library need the real one, so the stand-in is there only while modules of ours are imported.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class _Members(type):
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


class IntEnum(int, metaclass=_Members):
    """Members that are numbers."""


class StrEnum(str, metaclass=_Members):
    """Members that are texts."""


class Importing:
    """A context in which `import enum` finds the stand-in, unless the real one was imported before."""

    def __enter__(self) -> None:
        module: Any = ModuleType("enum", __doc__)
        module.IntEnum, module.StrEnum = IntEnum, StrEnum
        self._module = module
        sys.modules.setdefault("enum", module)

    def __exit__(self, *_: object) -> None:
        if sys.modules.get("enum") is self._module:
            del sys.modules["enum"]
