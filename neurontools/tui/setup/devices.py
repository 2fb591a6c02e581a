"""Choosing the devices that are shown, until the program ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.choices import Choices
from neurontools.util.units import ranges_text
from neurontools.views.drawing.dialog import Dialog

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState

_HINT = "Space show or hide, o only this one, 0 all, Esc back"


def device_text(dashboard: DashboardState) -> str:
    """The choice in words."""
    return f"all but {ranges_text(dashboard.hidden_devices)}" if dashboard.hidden_devices else "all"


def device_choice(dashboard: DashboardState, cursor: int = 0) -> Choices:
    """The dialog."""
    index = dashboard.time.index
    snapshot = dashboard.feed.timeline.snapshot(index) if index is not None else None
    # Those that the command line has left out are not to be had here.
    indices = [device.index for device in dashboard.narrowing.part(snapshot).devices] if snapshot is not None else []

    def show(hidden: frozenset[int], number: int) -> Choices:
        if len(hidden) < len(indices):  # one has to stay
            dashboard.hide_devices(hidden)
        choices = device_choice(dashboard, number)
        choices.back = opened.back
        return choices

    def toggle(number: int) -> Choices:
        return show(dashboard.hidden_devices ^ {indices[number]}, number)

    def alone(number: int) -> Choices:
        return show(frozenset(indices) - {indices[number]}, number)

    options = tuple(f"[{' ' if index in dashboard.hidden_devices else 'x'}] ND {index}" for index in indices)
    more = {"space": toggle, "o": alone, "0": lambda number: show(frozenset(), number)} if indices else {}
    opened = Choices(Dialog("Devices", options=options, cursor=cursor, hint=_HINT), toggle, more)
    return opened
