"""What each key, click and turn of the wheel does; knows nothing of Textual."""

from __future__ import annotations

from neurontools.tui import keys
from neurontools.tui.actions.movement import MovementActions
from neurontools.tui.actions.page import PageActions
from neurontools.tui.actions.program import ProgramActions
from neurontools.tui.actions.time import TimeActions
from neurontools.tui.choices import Choices
from neurontools.tui.dashboard_state import SENSELESS


class Dashboard(MovementActions, PageActions, ProgramActions, TimeActions):
    """The dashboard: what is chosen and shown, and the actions that change it."""

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does; whether it means anything."""
        if key in keys.ALWAYS:
            return self._act(keys.BY_KEY[key], key)
        if self.choices is not None:
            return self._choose(self.choices, key)
        if self.edited_filter is not None:
            return self._edit(key, character)
        action = keys.BY_KEY.get(key)
        return action is not None and self._act(action, key)

    def _act(self, action: keys.KeyAction, key: str) -> bool:
        self.forget_message()
        try:
            if action.name == "choose_tab":
                self.choose_tab(int(key))
            else:
                getattr(self, action.name)()
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
        return True

    def _choose(self, choices: Choices, key: str) -> bool:
        """Do what a key does while a dialog is open."""
        self.choices = None  # also when what was chosen fails
        self.choices = choices.press(key)
        return True

    def click(self, column: int, row: int) -> bool:
        """Do what a click at a cell does; whether it means anything."""
        try:
            return self._click(column, row)
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
            return True

    def _click(self, column: int, row: int) -> bool:
        target = self.drawn.target_at(column, row)
        if target is None:
            return False
        action, argument = target.action, target.argument
        if self.choices is not None:
            if action == "option":
                self.choices.move_to(int(argument))
                return self._choose(self.choices, "enter")
            return False
        if action == "key":
            return self.press(argument)
        if action == "page":
            self.show_page(argument)
        elif action == "tab":
            scene = self.scene()
            if scene is not None:
                self._choose_tab(scene, int(argument) if argument else None)
        elif action == "sort":
            self._sort_by(argument)
        elif action == "scrub":
            self.feed.want_past()
            self.time.seek(float(argument))
        elif action == "device":
            self.device_index, self.core_index = int(argument), None
            if self.page == "overview":
                self._select_device(int(argument))
        elif action == "core":
            self.core_index = int(argument)
        elif action == "row":
            was = self.list.cursor
            self.move_to(int(argument))
            if was == self.list.cursor and self.page in ("overview", "processes"):
                self.enter()
        return True

    def scroll(self, lines: int) -> None:
        """What the mouse wheel does."""
        if self.choices is not None:
            self.choices.move(lines)
        else:
            self.move_to(self.list.cursor + lines)

    def _edit(self, key: str, character: str | None) -> bool:
        text = self.edited_filter or ""
        if key == "enter":
            self.filter_text, self.edited_filter = text.strip(), None
        elif key == "escape":
            self.filter_text, self.edited_filter = "", None
        elif key in ("backspace", "ctrl+h"):
            self.edited_filter = text[:-1]
        elif key == "ctrl+u":
            self.edited_filter = ""
        elif key in ("up", "down"):
            self.move_to(self.list.cursor + (1 if key == "down" else -1))
        elif character is not None and character.isprintable() and len(text) < 200:
            self.edited_filter = text + character
        else:
            return False
        return True
