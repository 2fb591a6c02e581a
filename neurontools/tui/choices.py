"""An open dialog: text to scroll, or options to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.views.drawing.dialog import Dialog

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState


@dataclass(slots=True)
class Choices:
    """A dialog and what happens when one of its options is chosen; `chosen` may open the next dialog."""

    title: str
    text: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    cursor: int = 0
    top: int = 0
    hint: str = "Enter choose, Esc close"
    chosen: Callable[[int], Choices | None] | None = None

    def dialog(self) -> Dialog:
        """What is drawn."""
        return Dialog(self.title, self.text, self.options, self.cursor, self.top, self.hint)

    def move(self, lines: int) -> None:
        """Move the choice, or scroll the text."""
        if self.options:
            self.cursor = min(max(0, self.cursor + lines), len(self.options) - 1)
        else:
            self.top = min(max(0, self.top + lines), max(0, len(self.text) - 1))

    def press(self, key: str, dashboard: DashboardState) -> bool:
        """Do what a key does while the dialog is open; any key it doesn't know is swallowed."""
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -999, "end": 999}
        if key in moves:
            self.move(moves[key])
        elif key == "enter" and self.options:
            dashboard.choices = None
            if self.chosen is not None:
                dashboard.choices = self.chosen(self.cursor)
        elif key in ("escape", "q", "question_mark", "f1", "enter"):
            dashboard.choices = None
        elif key == "ctrl+c":
            dashboard.shell.quit()
        return True
