"""An open dialog: text to scroll, or options to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from neurontools.views.drawing.dialog import Dialog


@dataclass(slots=True)
class Choices:
    """A dialog and what happens when one of its options is chosen; `chosen` may open the next dialog.

    `more` are further keys, which get the option that the cursor is at; `back` opens the dialog that it came from.
    """

    dialog: Dialog
    chosen: Callable[[int], Choices | None] | None = None
    more: Mapping[str, Callable[[int], Choices | None]] = field(default_factory=dict)
    back: Callable[[], Choices | None] | None = None

    def move(self, lines: int) -> None:
        """Move the choice, or scroll the text."""
        dialog = self.dialog
        if dialog.options:
            self.move_to(min(max(0, dialog.cursor + lines), len(dialog.options) - 1))
        else:
            self.dialog = replace(dialog, top=min(max(0, dialog.top + lines), max(0, len(dialog.text) - 1)))

    def move_to(self, option: int) -> None:
        """Move the choice to an option."""
        self.dialog = replace(self.dialog, cursor=option)

    def press(self, key: str) -> Choices | None:
        """The dialog that is open after a key, if any. A key it doesn't know is swallowed."""
        if key in self.more:
            return self.more[key](self.dialog.cursor)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -999, "end": 999}
        if key in moves:
            self.move(moves[key])
        elif key == "enter" and self.dialog.options:
            return None if self.chosen is None else self.chosen(self.dialog.cursor)
        elif key in ("escape", "q", "question_mark", "f1", "enter"):
            return None if self.back is None else self.back()
        return self
