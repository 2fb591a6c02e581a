"""The Textual application around the page of many hosts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen

from neurontools.tui.board import Board
from neurontools.tui.board_screen import BoardScreen
from neurontools.tui.endings import Endings, end_by
from neurontools.tui.fleet.fleet_board import FleetBoard
from neurontools.tui.terminal.driver import Driver
from neurontools.tui.terminal.typed_ahead import TypedAhead

_BEAT_SECONDS = 1.0  # ages grow
_SOON_SECONDS = 0.2  # after which the first words of hosts are drawn


class FleetTop(App[str]):
    """The page in a terminal. It ends with the name of a host to look at, or None. The feed runs on."""

    CSS_PATH = Path(__file__).parent.with_name("app.tcss")
    TITLE = "neuron-top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self, fleet: FleetBoard, theme_name: str, typed_ahead: TypedAhead, endings: Endings | None = None
    ) -> None:
        super().__init__(driver_class=Driver, ansi_color=True)
        self._endings = endings
        self._fleet = fleet
        self.typed_ahead = typed_ahead
        self._board = Board(fleet, theme_name, typed_ahead)
        fleet.leave = self._leave
        fleet.suspend = self.action_suspend_process

    def get_default_screen(self) -> Screen[None]:
        """The board alone."""
        return BoardScreen(self._board)

    def on_mount(self) -> None:
        """Draw each second, and more often while hosts are answering for the first time."""
        self.set_interval(_BEAT_SECONDS, self._board.redraw)
        if not self._fleet.feed.is_settled:
            self._soon()
        self.app_resume_signal.subscribe(self, lambda _app: self._board.redraw(whole=True))
        end_by(self, self._endings)
        self.typed_ahead.deliver(self._fleet.press)

    def _leave(self, name: str | None) -> None:
        if name is not None:
            self.typed_ahead.begin()
        self.exit(name)

    def _soon(self) -> None:
        self._board.redraw()
        if not self._fleet.feed.is_settled:
            self.set_timer(_SOON_SECONDS, self._soon)
