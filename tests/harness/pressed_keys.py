"""Keys for a dashboard without a terminal, and for neuron-top in Textual's own test terminal."""

from __future__ import annotations

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot

from neurontools.tui.dashboard import Dashboard
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import TextPage, plain_text
from tests.harness.still_feed import snapshots

WIDTH, HEIGHT = 120, 40
FIRST_PID = snapshots()[-1].processes[0].pid


def named(key: str) -> tuple[str, str | None]:
    """What Textual calls a key, which is given as a character or by its name, and its character."""
    return (_character_to_key(key), key) if len(key) == 1 else (key, None)


def draw(dashboard: Dashboard, width: int = WIDTH, height: int = HEIGHT) -> TextPage:
    return dashboard.draw(width, height)


def text(dashboard: Dashboard, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    return "\n".join(without_frame(plain_text(line)) for line in draw(dashboard, *size).lines)


def without_frame(row: str) -> str:
    """A row of the screen without the sides of the frame."""
    return row[1:-1].rstrip() if row[:1] == row[-1:] == UNICODE.vertical else row


def press(dashboard: Dashboard, *pressed: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    """Presses keys, characters or names, each once what the one before did has been drawn; the screen afterwards."""
    shown = text(dashboard, size)
    for key in pressed:
        assert dashboard.press(*named(key)), key
        shown = text(dashboard, size)
    return shown


async def type_keys(pilot: Pilot[None], *keys: str) -> None:
    """Types keys one after the other, each once what the one before did has been drawn.

    Pilot's own `press` sleeps forty milliseconds a key, to see whether the process is idle.
    """
    for key in keys:
        pilot.app.post_message(events.Key(*named(key)))
        await pilot.pause(0)  # the application hands it to the board
        await pilot.pause(0)  # which takes it
