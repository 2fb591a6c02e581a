"""A stand-in for the standard library's dataclasses in a one-shot command that ends right after.

Importing dataclasses takes as long as starting Python (it imports inspect), and every class costs a run of the
compiler. What reads the devices and prints them needs neither: it makes objects and reads their fields. So here
a class gets a plain initialiser, and no comparison, hash, text or protection against changes.
"""

from __future__ import annotations

import sys
from types import MemberDescriptorType, ModuleType

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class _Field:
    __slots__ = ("default", "name")

    def __init__(self, name: str, default: object) -> None:
        self.name = name
        self.default = default


_MISSING = object()


def install() -> None:
    """Puts the stand-in where `import dataclasses` finds it, unless the real one was imported before."""
    module: Any = ModuleType("dataclasses", __doc__)
    module.dataclass, module.fields, module.replace = dataclass, fields, replace
    sys.modules.setdefault("dataclasses", module)


def dataclass(kind: type | None = None, /, **_options: object) -> Any:
    """The decorator, with and without options; they change nothing here. Defaults are values, not factories."""
    return _made if kind is None else _made(kind)


def fields(kind: Any) -> tuple[_Field, ...]:
    """The fields of a class or an object of it, in order."""
    listed: tuple[_Field, ...] = kind.__light_fields__
    return listed


def replace(part: Any, /, **changes: object) -> Any:
    """A copy with some fields changed."""
    copy = object.__new__(type(part))
    copy.__dict__.update(part.__dict__)
    copy.__dict__.update(changes)
    return copy


def _made(kind: Any) -> Any:
    listed = {field.name: field for field in getattr(kind, "__light_fields__", ())}
    for name in kind.__dict__.get("__annotations__", {}):  # noqa: RUF063 - inspect is what we are here to avoid
        default = kind.__dict__.get(name, _MISSING)
        listed[name] = _Field(name, _MISSING if isinstance(default, MemberDescriptorType) else default)
    kind.__light_fields__ = tuple(listed.values())
    kind.__init__ = _initialiser(
        tuple(listed),
        {field.name: field.default for field in listed.values() if field.default is not _MISSING},
        getattr(kind, "__post_init__", None),
    )
    return kind


def _initialiser(
    names: Iterable[str], defaults: dict[str, object], check: Callable[[object], None] | None
) -> Callable[..., None]:
    def initialise(self: Any, *arguments: object, **named: object) -> None:
        values = self.__dict__
        values.update(defaults)
        values.update(zip(names, arguments))  # noqa: B905 - later fields come by name or have defaults
        values.update(named)
        if check is not None:
            check(self)

    return initialise
