"""What a dashboard shows after some keys, without a terminal."""

from __future__ import annotations

from neurontools.tui.dashboard import Dashboard
from neurontools.views.drawing.line import Page, plain
from tests.harness.still_feed import snapshots

WIDTH, HEIGHT = 120, 40
FIRST_PID = snapshots()[-1].processes[0].pid


def draw(dashboard: Dashboard, width: int = WIDTH, height: int = HEIGHT) -> Page:
    return dashboard.draw(width, height)


def text(dashboard: Dashboard) -> str:
    return "\n".join(plain(line) for line in draw(dashboard).lines)


def press(dashboard: Dashboard, *pressed: str) -> str:
    for key in pressed:
        assert dashboard.press(key, key if len(key) == 1 else None), key
        draw(dashboard)
    return text(dashboard)
