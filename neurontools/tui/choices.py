"""An open dialog: text to scroll, or options to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.views.drawing.dialog import Dialog


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

    def press(self, key: str) -> tuple[Choices | None, bool]:
        """The dialog that is open after a key, if any, and whether the dashboard is to quit.

        Any key it doesn't know is swallowed.
        """
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -999, "end": 999}
        if key in moves:
            self.move(moves[key])
        elif key == "enter" and self.options:
            return (None if self.chosen is None else self.chosen(self.cursor)), False
        elif key in ("escape", "q", "question_mark", "f1", "enter"):
            return None, False
        return self, key == "ctrl+c"
