"""Setup dialogs: columns, sort order, theme, first page, devices and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from neurontools.tui.dashboard_state import OpenDialog
from neurontools.tui.sort_order import sort_by, then_sort_by
from neurontools.util.units import ranges_text
from neurontools.views.drawing.glyphs import Dialog
from neurontools.views.drawing.lines import THEMES
from neurontools.views.process_table import BY_KEY, COMMAND, EVERY_COLUMN
from neurontools.views.screen import PAGES

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState
    from neurontools.tui.settings import DashboardSettings


_COLUMN_HINT = "Space show or hide, < > move, 0 as usual, Esc back"


def column_text(columns: tuple[str, ...]) -> str:
    """The choice in words."""
    return ", ".join(columns) if columns else "those that there is room for"


def column_dialog(dashboard: DashboardState, at: str = "") -> OpenDialog:
    """The dialog: the columns shown in their order, then the others; the cursor at one of them."""
    settings = dashboard.settings
    shown = list(settings.columns) or [column.key for column in EVERY_COLUMN if column.offered]
    if COMMAND.key in shown:  # takes what is left, so it is always last
        shown = [*(key for key in shown if key != COMMAND.key), COMMAND.key]
    keys = [*shown, *(column.key for column in EVERY_COLUMN if column.key not in shown)]

    def toggle(number: int) -> OpenDialog:
        key = keys[number]
        changed = [each for each in shown if each != key] if key in shown else [*shown, key]
        settings.columns = tuple(changed or shown)  # one has to stay
        return again(key)

    def mover(step: int) -> Callable[[int], OpenDialog]:
        def move(number: int) -> OpenDialog:
            target = number + step
            if number < len(shown) and 0 <= target < len(shown):
                shown[number], shown[target] = shown[target], shown[number]
                settings.columns = tuple(shown)
            return again(keys[number])

        return move

    def reset(number: int) -> OpenDialog:
        settings.columns = ()
        return again(keys[number])

    def again(key: str) -> OpenDialog:
        choices = column_dialog(dashboard, key)
        choices.back = opened.back
        return choices

    options = tuple(f"[{'x' if key in shown else ' '}] {BY_KEY[key].title:<9} {BY_KEY[key].about}" for key in keys)
    cursor = keys.index(at) if at in keys else 0
    more = {"space": toggle, "less_than_sign": mover(-1), "greater_than_sign": mover(1), "0": reset}
    more |= {"left": more["less_than_sign"], "right": more["greater_than_sign"]}
    opened = OpenDialog(Dialog("Columns", options=options, cursor=cursor, hint=_COLUMN_HINT), toggle, more)
    return opened


_DEVICE_HINT = "Space show or hide, o only this one, 0 all, Esc back"


def device_text(dashboard: DashboardState) -> str:
    """The choice in words."""
    return f"all but {ranges_text(dashboard.hidden_devices)}" if dashboard.hidden_devices else "all"


def device_dialog(dashboard: DashboardState, cursor: int = 0) -> OpenDialog:
    """The dialog."""
    index = dashboard.time.index
    snapshot = dashboard.feed.timeline.snapshot(index) if index is not None else None
    # Those that the command line has left out are not to be had here.
    indices = (
        [device.index for device in dashboard.narrowing.filter_snapshot(snapshot).devices]
        if snapshot is not None
        else []
    )

    def show(hidden: frozenset[int], number: int) -> OpenDialog:
        if len(hidden) < len(indices):  # one has to stay
            dashboard.hide_devices(hidden)
        choices = device_dialog(dashboard, number)
        choices.back = opened.back
        return choices

    def toggle(number: int) -> OpenDialog:
        return show(dashboard.hidden_devices ^ {indices[number]}, number)

    def alone(number: int) -> OpenDialog:
        return show(frozenset(indices) - {indices[number]}, number)

    options = tuple(f"[{' ' if index in dashboard.hidden_devices else 'x'}] ND {index}" for index in indices)
    more = {"space": toggle, "o": alone, "0": lambda number: show(frozenset(), number)} if indices else {}
    opened = OpenDialog(Dialog("Devices", options=options, cursor=cursor, hint=_DEVICE_HINT), toggle, more)
    return opened


_MENU_HINT = "Enter choose, Esc close; all but devices is kept"


def setup_dialog(dashboard: DashboardState, cursor: int = 0) -> OpenDialog:
    """The dialog."""
    settings = dashboard.settings
    entries = (
        ("columns", column_text(settings.columns), column_dialog),
        ("sort by", sort_order_text(settings), sort_dialog),
        ("theme", settings.theme, theme_dialog),
        ("page to begin with", settings.start_page or "the last one", first_page_dialog),
        ("devices", device_text(dashboard), device_dialog),
        ("idle below", f"{settings.idle_below_percent:g} % busy", idle_threshold_dialog),
        ("late after", f"{settings.late_after_seconds:g} s without an execution", late_threshold_dialog),
    )

    def chosen(number: int) -> OpenDialog:
        choices = entries[number][2](dashboard)
        choices.back = lambda: setup_dialog(dashboard, number)
        return choices

    options = tuple(f"{name:<20} {text}" for name, text, _ in entries)
    return OpenDialog(Dialog("Setup", options=options, cursor=cursor, hint=_MENU_HINT), chosen)


_SORT_HINT = "Enter first, Space second; again turns it round; Esc back"


def sort_order_text(settings: DashboardSettings) -> str:
    """The choice in words."""
    orders = [(settings.sort, settings.is_descending), (settings.then_sort, settings.is_then_descending)]
    return ", then ".join(f"{key}{', largest first' if down else ''}" for key, down in orders if key in BY_KEY)


def sort_dialog(dashboard: DashboardState, at: str = "") -> OpenDialog:
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

    def again(number: int) -> OpenDialog:
        choices = sort_dialog(dashboard, names[number])
        choices.back = opened.back
        return choices

    def first(number: int) -> OpenDialog | None:
        sort_by(settings, names[number])
        return again(number) if opened.back is not None else None

    def second(number: int) -> OpenDialog:
        then_sort_by(settings, names[number])
        return again(number)

    options = tuple(f"{mark(column.key)} {column.title:<9} {column.about}" for column in EVERY_COLUMN)
    cursor = names.index(at or settings.sort) if (at or settings.sort) in names else 0
    opened = OpenDialog(Dialog("Sort by", options=options, cursor=cursor, hint=_SORT_HINT), first, {"space": second})
    return opened


T = TypeVar("T")

_IDLE_PERCENT = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
_LATE_SECONDS = (5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_VALUE_HINT = "Enter choose, Esc back"


def theme_dialog(dashboard: DashboardState) -> OpenDialog:
    """The theme; it is seen at once."""
    names = ["auto", *THEMES]
    return _value_dialog("Theme", names, dashboard.settings.theme, names, dashboard.shell.set_theme)


def first_page_dialog(dashboard: DashboardState) -> OpenDialog:
    """The page to begin with."""

    def choose(name: str) -> None:
        dashboard.settings.start_page = name

    names = ["", *(page.name for page in PAGES)]
    texts = ["the one looked at last", *(f"{page.name:<10} {page.title}" for page in PAGES)]
    return _value_dialog("Page to begin with", names, dashboard.settings.start_page, texts, choose)


def idle_threshold_dialog(dashboard: DashboardState) -> OpenDialog:
    """From which utilization on a held core is shown as busy."""

    def choose(percent: float) -> None:
        dashboard.settings.idle_below_percent = percent

    texts = [f"below {percent:g} %" for percent in _IDLE_PERCENT]
    return _value_dialog("A held core is idle", _IDLE_PERCENT, dashboard.settings.idle_below_percent, texts, choose)


def late_threshold_dialog(dashboard: DashboardState) -> OpenDialog:
    """After how long without an execution a process is marked."""

    def choose(seconds: float) -> None:
        dashboard.settings.late_after_seconds = seconds

    texts = [f"after {seconds:g} s" for seconds in _LATE_SECONDS]
    return _value_dialog("No execution is late", _LATE_SECONDS, dashboard.settings.late_after_seconds, texts, choose)


def _value_dialog(
    title: str, values: Sequence[T], now: T, texts: Sequence[str], choose: Callable[[T], None]
) -> OpenDialog:
    def chosen(number: int) -> OpenDialog | None:
        choose(values[number])
        return None if opened.back is None else opened.back()

    cursor = values.index(now) if now in values else 0
    options = tuple(
        f"({'x' if position == cursor and now in values else ' '}) {text}" for position, text in enumerate(texts)
    )
    opened = OpenDialog(Dialog(title, options=options, cursor=cursor, hint=_VALUE_HINT), chosen)
    return opened
