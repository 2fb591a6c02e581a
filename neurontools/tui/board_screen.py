"""The one screen: nothing but the board."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from neurontools.tui.board import Board


class BoardScreen(Screen[None]):
    """Holds the board, which has the focus all the time."""

    AUTO_FOCUS = "Board"

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def compose(self) -> ComposeResult:
        """The board."""
        yield self._board

    def on_key(self, event: events.Key) -> None:
        """Give the board what was typed before it had the focus; what it has had and does not know does nothing."""
        self._board.on_key(event)
