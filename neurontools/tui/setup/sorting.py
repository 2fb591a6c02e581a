"""Choosing the two columns that the process list is sorted by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.choices import Choices
from neurontools.tui.sort_order import sort_by, then_sort_by
from neurontools.views.drawing.dialog import Dialog
from neurontools.views.processes.columns import BY_KEY, EVERY_COLUMN

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState
    from neurontools.tui.settings import Settings

_HINT = "Enter first, Space second; again turns it round; Esc back"


def sorting_text(settings: Settings) -> str:
    """The choice in words."""
    orders = [(settings.sort, settings.is_descending), (settings.then_sort, settings.is_then_descending)]
    return ", then ".join(f"{key}{', largest first' if down else ''}" for key, down in orders if key in BY_KEY)


def sorting(dashboard: DashboardState, at: str = "") -> Choices:
    """The dialog; the cursor at a column, else at the first one that is sorted by."""
    settings, glyphs = dashboard.settings, dashboard.glyphs
    names = [column.key for column in EVERY_COLUMN]

    def mark(key: str) -> str:
        for number, name, is_descending in (
            (1, settings.sort, settings.is_descending),
            (2, settings.then_sort, settings.is_then_descending),
        ):
            if key == name:
                return f"{number}{glyphs.descending if is_descending else glyphs.ascending}"
        return "  "

    def again(number: int) -> Choices:
        choices = sorting(dashboard, names[number])
        choices.back = opened.back
        return choices

    def first(number: int) -> Choices | None:
        sort_by(settings, names[number])
        return again(number) if opened.back is not None else None

    def second(number: int) -> Choices:
        then_sort_by(settings, names[number])
        return again(number)

    options = tuple(f"{mark(column.key)} {column.title:<9} {column.about}" for column in EVERY_COLUMN)
    cursor = names.index(at or settings.sort) if (at or settings.sort) in names else 0
    opened = Choices(Dialog("Sort by", options=options, cursor=cursor, hint=_HINT), first, {"space": second})
    return opened
