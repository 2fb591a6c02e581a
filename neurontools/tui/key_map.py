"""Which key does what: the table of keys, as the reader has changed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from textual.keys import Keys, _character_to_key

from neurontools.tui.keys import ACTIONS, ALWAYS, KeyAction

_FIXED = ("choose_tab",)  # its keys are the numbers of the tabs
_MODIFIERS = frozenset(("ctrl", "alt", "shift"))
_NAMED = frozenset(key.value for key in Keys) | {"space"}


class KeyMap:
    """The actions with the keys that they have now; `troubles` says of each change that can't be what and why.

    `changes` has keys by the name of an action: those that it has from now on, in place of all its others. A key that
    another action had is taken from it.
    """

    def __init__(self, changes: Mapping[str, object] | None = None) -> None:
        self.troubles: list[str] = []
        self.changed: dict[str, str] = {}
        """The keys of changed actions in words, by the keys that the action had before: for what shows those."""
        self.actions = self._with(changes) if changes else ACTIONS
        self.by_key = {key: action for action in self.actions for key in action.keys}

    def action(self, name: str) -> KeyAction:
        """The action of this name."""
        return next(action for action in self.actions if action.name == name)

    def _with(self, changes: Mapping[str, object]) -> tuple[KeyAction, ...]:
        names = [action.name for action in ACTIONS]
        given: dict[str, str] = {}  # Textual's name of a key: the action that it is for
        shown: dict[str, list[str]] = {}
        for name, value in changes.items():
            texts = [value] if isinstance(value, str) else value
            if name not in names or name in _FIXED:
                near = get_close_matches(str(name), names, n=1)
                guess = f"; did you mean {near[0]}?" if near and name not in _FIXED else ""
                self.troubles.append(f"{str(name)[:40]!r} is no action with keys to change{guess}")
            elif not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                self.troubles.append(f"{name}: give a key or a list of keys")
            else:
                shown[name] = []
                for text in texts:
                    key = textual_key(text)
                    other = given.get(key)
                    if not key or key in ALWAYS or other is not None or key in "123456789":
                        why = f"is that of {other}" if other else "can't be changed" if key else "is no key"
                        self.troubles.append(f"{name}: {text[:20]!r} {why}")
                        continue
                    given[key] = name
                    shown[name].append(text)
        made = []
        for action in ACTIONS:
            own = tuple(key for key, name in given.items() if name == action.name)
            if action.name in shown and (own or not changes[action.name]):
                fixed = tuple(key for key in action.keys if key in ALWAYS)
                text = ", ".join(shown[action.name])
            else:
                fixed, own = tuple(key for key in action.keys if key not in given), ()
                text = action.shown if fixed == action.keys else ", ".join(map(_spelled, fixed))
            if (own, fixed) != ((), action.keys):
                self.changed.update(dict.fromkeys(action.keys, text))
            made.append(replace(action, keys=own + fixed, shown=text or "-"))
        return tuple(made)


def textual_key(text: str) -> str:
    """A key as Textual names it: of a character, `F5`, `Ctrl-X` or Textual's own name; "" where there is none such."""
    if len(text) == 1:
        return _character_to_key(text) if text.isprintable() else ""
    *modifiers, last = text.replace("-", "+").casefold().split("+")
    if len(last) == 1 and last.isprintable():
        last = _character_to_key(last)
    elif last not in _NAMED and last not in _DEFAULTS:
        return ""
    return "+".join([*modifiers, last]) if set(modifiers) <= _MODIFIERS else ""


_DEFAULTS = frozenset(key for action in ACTIONS for key in action.keys)


def _spelled(key: str) -> str:
    """A key of Textual's in words."""
    return "+".join(word.capitalize() if len(word) > 1 else word for word in key.split("+"))
