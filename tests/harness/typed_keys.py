"""Keys for neuron-top in Textual's own test terminal."""

from __future__ import annotations

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot


async def type_keys(pilot: Pilot[None], *keys: str) -> None:
    """Types keys one after the other, each once what the one before did has been drawn.

    Pilot's own `press` sleeps forty milliseconds a key, to see whether the process is idle.
    """
    for key in keys:
        is_character = len(key) == 1
        name = _character_to_key(key) if is_character and not key.isalnum() else key
        pilot.app.post_message(events.Key(name, key if is_character else None))
        await pilot.pause(0)  # the application hands it to the board
        await pilot.pause(0)  # which takes it
