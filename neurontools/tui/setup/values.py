"""Choosing one value of a few: theme, page, thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from neurontools.tui.choices import Choices
from neurontools.views.drawing.dialog import Dialog
from neurontools.views.drawing.style import THEMES
from neurontools.views.pages import PAGES

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState

T = TypeVar("T")

_IDLE_PERCENT = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
_LATE_SECONDS = (5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_HINT = "Enter choose, Esc back"


def theme_choice(dashboard: DashboardState) -> Choices:
    """The theme; it is seen at once."""
    names = ["auto", *THEMES]
    return _one_of("Theme", names, dashboard.settings.theme, names, dashboard.shell.set_theme)


def page_choice(dashboard: DashboardState) -> Choices:
    """The page to begin with."""

    def choose(name: str) -> None:
        dashboard.settings.start_page = name

    names = ["", *(page.name for page in PAGES)]
    texts = ["the one looked at last", *(f"{page.name:<10} {page.title}" for page in PAGES)]
    return _one_of("Page to begin with", names, dashboard.settings.start_page, texts, choose)


def idle_choice(dashboard: DashboardState) -> Choices:
    """From which utilization on a held core is shown as busy."""

    def choose(percent: float) -> None:
        dashboard.settings.idle_below_percent = percent

    texts = [f"below {percent:g} %" for percent in _IDLE_PERCENT]
    return _one_of("A held core is idle", _IDLE_PERCENT, dashboard.settings.idle_below_percent, texts, choose)


def late_choice(dashboard: DashboardState) -> Choices:
    """After how long without an execution a process is marked."""

    def choose(seconds: float) -> None:
        dashboard.settings.late_after_seconds = seconds

    texts = [f"after {seconds:g} s" for seconds in _LATE_SECONDS]
    return _one_of("No execution is late", _LATE_SECONDS, dashboard.settings.late_after_seconds, texts, choose)


def _one_of(title: str, values: Sequence[T], now: T, texts: Sequence[str], choose: Callable[[T], None]) -> Choices:
    def chosen(number: int) -> Choices | None:
        choose(values[number])
        return None if opened.back is None else opened.back()

    cursor = values.index(now) if now in values else 0
    options = tuple(
        f"({'x' if position == cursor and now in values else ' '}) {text}" for position, text in enumerate(texts)
    )
    opened = Choices(Dialog(title, options=options, cursor=cursor, hint=_HINT), chosen)
    return opened
