"""Choosing the columns of the process list, and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neurontools.tui.choices import Choices
from neurontools.views.drawing.dialog import Dialog
from neurontools.views.processes.columns import BY_KEY, COMMAND, EVERY_COLUMN

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState

_HINT = "Space show or hide, < > move, 0 as usual, Esc back"


def column_text(columns: tuple[str, ...]) -> str:
    """The choice in words."""
    return ", ".join(columns) if columns else "those that there is room for"


def column_choice(dashboard: DashboardState, at: str = "") -> Choices:
    """The dialog: the columns shown in their order, then the others; the cursor at one of them."""
    settings = dashboard.settings
    shown = list(settings.columns) or [column.key for column in EVERY_COLUMN if column.offered]
    if COMMAND.key in shown:  # takes what is left, so it is always last
        shown = [*(key for key in shown if key != COMMAND.key), COMMAND.key]
    keys = [*shown, *(column.key for column in EVERY_COLUMN if column.key not in shown)]

    def toggle(number: int) -> Choices:
        key = keys[number]
        changed = [each for each in shown if each != key] if key in shown else [*shown, key]
        settings.columns = tuple(changed or shown)  # one has to stay
        return again(key)

    def mover(step: int) -> Callable[[int], Choices]:
        def move(number: int) -> Choices:
            target = number + step
            if number < len(shown) and 0 <= target < len(shown):
                shown[number], shown[target] = shown[target], shown[number]
                settings.columns = tuple(shown)
            return again(keys[number])

        return move

    def reset(number: int) -> Choices:
        settings.columns = ()
        return again(keys[number])

    def again(key: str) -> Choices:
        choices = column_choice(dashboard, key)
        choices.back = opened.back
        return choices

    options = tuple(f"[{'x' if key in shown else ' '}] {BY_KEY[key].title:<9} {BY_KEY[key].about}" for key in keys)
    cursor = keys.index(at) if at in keys else 0
    more = {"space": toggle, "less_than_sign": mover(-1), "greater_than_sign": mover(1), "0": reset}
    more |= {"left": more["less_than_sign"], "right": more["greater_than_sign"]}
    opened = Choices(Dialog("Columns", options=options, cursor=cursor, hint=_HINT), toggle, more)
    return opened
