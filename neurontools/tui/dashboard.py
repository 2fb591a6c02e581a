"""Dashboard: dispatches keys, clicks and the mouse wheel. Does not depend on Textual."""

from __future__ import annotations

from neurontools.tui import actions, keys
from neurontools.tui.dashboard_state import DashboardState, OpenDialog
from neurontools.views.feed_view import CORRUPT_DATA_ERRORS

_MOST_TYPED = 200


class Dashboard(DashboardState):
    """Dashboard of one host, which handles keys, clicks and the mouse wheel."""

    def press(self, key: str, character: str | None = None) -> bool:
        """Handles a key. Returns False if the key has no effect in the current state."""
        if key in keys.ALWAYS:
            return self.act(keys.BY_KEY[key], key)
        if self.open_dialog is not None:
            return self._choose(self.open_dialog, key)
        if self.edited_filter is not None:
            return self._edit_filter(key, character)
        if self.edited_search is not None:
            return self._edit_search(key, character)
        action = self.keymap.by_key.get(key)
        return action is not None and self.act(action, key)

    def act(self, action: keys.KeyAction, key: str = "") -> bool:
        """Runs an action; `key` is the key that was pressed. Returns True."""
        self.forget_message()
        try:
            if action.name == "choose_tab":
                actions.choose_tab_number(self, int(key))
            else:
                actions.ACTION_FUNCTIONS[action.name](self)
        except CORRUPT_DATA_ERRORS as error:
            self.show_message(f"this can't be done at this moment: {error}")
        return True

    def _choose(self, choices: OpenDialog, key: str) -> bool:
        """Passes a key to the open dialog."""
        self.open_dialog = None  # so that the dialog closes even if its callback raises
        self.open_dialog = choices.press(key)
        return True

    def click(self, column: int, row: int) -> bool:
        """Handles a mouse click. Returns False if there is no click target at this cell."""
        try:
            return self._click(column, row)
        except CORRUPT_DATA_ERRORS as error:
            self.show_message(f"this can't be done at this moment: {error}")
            return True

    def _click(self, column: int, row: int) -> bool:
        target = self.drawn.target_at(column, row)
        if target is None:
            return False
        action, argument = target.action, target.argument
        if self.open_dialog is not None:
            if action == "option":
                self.open_dialog.move_to(int(argument))
                return self._choose(self.open_dialog, "enter")
            return False
        if action == "key":  # the argument is the default key; the user may have rebound it
            return (
                self.edited_filter is None and self.edited_search is None and self.act(keys.BY_KEY[argument], argument)
            )
        if action == "page":
            self.show_page(argument)
        elif action == "tab":
            context = self.render_context()
            if context is not None:
                actions.choose_tab(self, context, int(argument) if argument else None)
        elif action == "sort":
            actions.sort_by(self, argument)
        elif action == "scrub":
            self.time.seek(float(argument))
        elif action == "device":
            self.device_index, self.core_index = int(argument), None
            if self.page == "overview":
                actions.select_device(self, int(argument))
        elif action == "core":
            self.core_index = int(argument)
        elif action == "row":
            was = self.list.cursor
            self.move_to(int(argument))
            if was == self.list.cursor and self.page in ("overview", "processes"):
                actions.enter(self)
        return True

    def scroll(self, lines: int) -> None:
        """Scrolls the open dialog; without a dialog, moves the cursor of the list."""
        if self.open_dialog is not None:
            self.open_dialog.move(lines)
        else:
            self.move_to(self.list.cursor + lines)

    def _edit_filter(self, key: str, character: str | None) -> bool:
        text = self.edited_filter or ""
        if key == "enter":
            self.filter_text, self.edited_filter = text.strip(), None
        elif key == "escape":
            self.filter_text, self.edited_filter = "", None
        elif key in ("up", "down"):
            self.move_to(self.list.cursor + (1 if key == "down" else -1))
        else:
            edited = _edited(text, key, character)
            self.edited_filter = text if edited is None else edited
            return edited is not None
        return True

    def _edit_search(self, key: str, character: str | None) -> bool:
        """Handles a key while the user types a search. Each edit searches anew from the row selected at the start."""
        text = self.edited_search or ""
        if key == "enter":
            self.search_text, self.edited_search = text.strip(), None
        elif key == "escape":
            self.search_text, self.edited_search = "", None
        elif key in ("up", "down"):
            self.to_match(1 if key == "down" else -1)
        else:
            edited = _edited(text, key, character)
            if edited is None:
                return False
            self.edited_search = edited
            self.go_to(self.search_start)
            self.to_match(0)
        return True


def _edited(text: str, key: str, character: str | None) -> str | None:
    """Returns the text after an editing key; None if the key does not edit text."""
    if key in ("backspace", "ctrl+h"):
        return text[:-1]
    if key == "ctrl+u":
        return ""
    if character is not None and character.isprintable() and len(text) < _MOST_TYPED:
        return text + character
    return None
