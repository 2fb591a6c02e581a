"""Implements `repr` of the classes in a snapshot: one short line, for notebooks and debuggers."""

from __future__ import annotations

from dataclasses import fields
from time import gmtime, strftime

TYPE_CHECKING = False  # not imported, because importing `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_MOST_ITEMS = 8


def repr_of_fields(*names: str) -> Callable[[Any], str]:
    """Returns a `__repr__` method that shows these fields, and an ellipsis for the other fields."""

    def shown(part: Any) -> str:
        return f"{type(part).__name__}({', '.join(f'{name}={abbreviate(getattr(part, name))}' for name in names)}, …)"

    return shown


def repr_of_changed_fields(part: Any) -> str:
    """Returns the representation of a dataclass. Omits fields that have their default value.

    Use it as `__repr__`. Unless values are abbreviated, the text evaluates to an equal object.
    """
    changed = {field.name: getattr(part, field.name) for field in fields(part)}
    given = {field.name: field.default for field in fields(part)}
    listed = [f"{name}={abbreviate(value)}" for name, value in changed.items() if value != given[name]]
    return f"{type(part).__name__}({', '.join(listed)})"


def abbreviate(value: object) -> str:
    """Returns the short representation of a value: long tuples as their length, floats rounded to four decimals."""
    if isinstance(value, tuple) and len(value) > _MOST_ITEMS:
        return f"<{len(value)}>"
    if isinstance(value, str) and len(value) > 80:
        return repr(value[:79] + "…")
    return repr(round(value, 4) if isinstance(value, float) else value)


def utc_time_text(unix_seconds: float) -> str:
    """Formats a Unix time as UTC; returns the plain number if it is outside the range of dates."""
    try:
        return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(unix_seconds))
    except (OverflowError, ValueError, OSError):
        return repr(unix_seconds)
