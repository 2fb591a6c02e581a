"""How parts of a snapshot show themselves in a notebook or a debugger."""

from __future__ import annotations

from dataclasses import fields
from time import gmtime, strftime

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_MOST_ITEMS = 8


def repr_of_fields(*names: str) -> Callable[[Any], str]:
    """A `__repr__` that shows these fields; an ellipsis says that there are more."""

    def shown(part: Any) -> str:
        return f"{type(part).__name__}({', '.join(f'{name}={abbreviate(getattr(part, name))}' for name in names)}, …)"

    return shown


def repr_of_changed_fields(part: Any) -> str:
    """A `__repr__` that leaves out the fields which have their default: made from it, the part is the same."""
    changed = {field.name: getattr(part, field.name) for field in fields(part)}
    given = {field.name: field.default for field in fields(part)}
    listed = [f"{name}={abbreviate(value)}" for name, value in changed.items() if value != given[name]]
    return f"{type(part).__name__}({', '.join(listed)})"


def abbreviate(value: object) -> str:
    """The text of a value: of many how many there are, of a number four decimals."""
    if isinstance(value, tuple) and len(value) > _MOST_ITEMS:
        return f"<{len(value)}>"
    if isinstance(value, str) and len(value) > 80:
        return repr(value[:79] + "…")
    return repr(round(value, 4) if isinstance(value, float) else value)


def utc_time_text(unix_seconds: float) -> str:
    """A time in UTC; the number itself where there is no such time."""
    try:
        return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(unix_seconds))
    except (OverflowError, ValueError, OSError):
        return repr(unix_seconds)
