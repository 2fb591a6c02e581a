"""Many indices in few words."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable


def ranges(indices: Iterable[int]) -> str:
    """Indices as people write them: "0-3,8"."""
    parts: list[str] = []
    start = previous = None
    for index in [*sorted(set(indices)), None]:
        if previous is not None and index == previous + 1:
            previous = index
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = index
    return ",".join(parts)
