"""One-line `repr` of the parts of a snapshot, for notebooks and debuggers."""

from __future__ import annotations

from dataclasses import fields
from time import gmtime, strftime

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_MOST_ITEMS = 8


def repr_of_fields(*names: str) -> Callable[[Any], str]:
    """Returns a `__repr__` that shows these fields and an ellipsis for the others."""

    def shown(part: Any) -> str:
        return f"{type(part).__name__}({', '.join(f'{name}={abbreviate(getattr(part, name))}' for name in names)}, …)"

    return shown


def repr_of_changed_fields(part: Any) -> str:
    """A `__repr__` that omits fields with their default value. It evaluates to an equal object."""
    changed = {field.name: getattr(part, field.name) for field in fields(part)}
    given = {field.name: field.default for field in fields(part)}
    listed = [f"{name}={abbreviate(value)}" for name, value in changed.items() if value != given[name]]
    return f"{type(part).__name__}({', '.join(listed)})"


def abbreviate(value: object) -> str:
    """Formats a value: a long tuple as its length, a float with four decimals."""
    if isinstance(value, tuple) and len(value) > _MOST_ITEMS:
        return f"<{len(value)}>"
    if isinstance(value, str) and len(value) > 80:
        return repr(value[:79] + "…")
    return repr(round(value, 4) if isinstance(value, float) else value)


def utc_time_text(unix_seconds: float) -> str:
    """Formats a time in UTC; the number itself if it is outside the calendar."""
    try:
        return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(unix_seconds))
    except (OverflowError, ValueError, OSError):
        return repr(unix_seconds)
