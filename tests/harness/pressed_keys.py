"""What a dashboard shows after some keys, without a terminal."""

from __future__ import annotations

from textual.keys import _character_to_key

from neurontools.tui.dashboard import Dashboard
from neurontools.views.drawing.line import Page, plain
from tests.harness.still_feed import snapshots

WIDTH, HEIGHT = 120, 40
FIRST_PID = snapshots()[-1].processes[0].pid


def draw(dashboard: Dashboard, width: int = WIDTH, height: int = HEIGHT) -> Page:
    return dashboard.draw(width, height)


def text(dashboard: Dashboard, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    return "\n".join(plain(line) for line in draw(dashboard, *size).lines)


def press(dashboard: Dashboard, *pressed: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    """Presses keys, characters or names, each once what the one before did has been drawn; the screen afterwards."""
    shown = text(dashboard, size)
    for key in pressed:
        is_character = len(key) == 1
        assert dashboard.press(_character_to_key(key) if is_character else key, key if is_character else None), key
        shown = text(dashboard, size)
    return shown
