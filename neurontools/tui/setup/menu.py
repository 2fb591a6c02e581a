"""The first dialog of the setup: what there is to choose, and how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.choices import Choices
from neurontools.tui.setup.columns import column_choice, column_text
from neurontools.tui.setup.devices import device_choice, device_text
from neurontools.tui.setup.sorting import sorting, sorting_text
from neurontools.tui.setup.values import idle_choice, late_choice, page_choice, theme_choice
from neurontools.views.drawing.dialog import Dialog

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState

_HINT = "Enter choose, Esc close; all but devices is kept"


def menu(dashboard: DashboardState, cursor: int = 0) -> Choices:
    """The dialog."""
    settings = dashboard.settings
    entries = (
        ("columns", column_text(settings.columns), column_choice),
        ("sort by", sorting_text(settings), sorting),
        ("theme", settings.theme, theme_choice),
        ("page to begin with", settings.start_page or "the last one", page_choice),
        ("devices", device_text(dashboard), device_choice),
        ("idle below", f"{settings.idle_below_percent:g} % busy", idle_choice),
        ("late after", f"{settings.late_after_seconds:g} s without an execution", late_choice),
    )

    def chosen(number: int) -> Choices:
        choices = entries[number][2](dashboard)
        choices.back = lambda: menu(dashboard, number)
        return choices

    options = tuple(f"{name:<20} {text}" for name, text, _ in entries)
    return Choices(Dialog("Setup", options=options, cursor=cursor, hint=_HINT), chosen)
