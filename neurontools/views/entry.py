"""A row of a page's list as a search sees it."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.views.drawing.figures import ProcessFigures


@dataclass(frozen=True, slots=True)
class Entry:
    """One row. It is found by the words of its text, and by what finds one of its processes."""

    key: str  # unique in the list, and the same from one moment to the next
    text: str = ""
    processes: tuple[ProcessFigures, ...] = ()
    within: tuple[str, ...] = ()  # the rows that have to be open for it to be seen
