"""Key table of neuron-top, and the key map that applies changes of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class KeyAction:
    """One action and its keys. `name` selects the function in ACTION_FUNCTIONS; `keys` are Textual's key names."""

    keys: tuple[str, ...]
    shown: str  # names of the keys in the help and manual page
    name: str
    text: str
    group: str


ACTIONS = (
    KeyAction(("q", "ctrl+c"), "q, Ctrl-C", "quit", "quit", "General"),
    KeyAction(("ctrl+z",), "Ctrl-Z", "suspend", "leave it to the background; fg brings it back", "General"),
    KeyAction(("question_mark", "f1"), "?, F1", "show_help", "this help, and the legend of bars and marks", "General"),
    KeyAction(("ctrl+p",), "Ctrl-P", "show_palette", "command palette: every action by name", "General"),
    KeyAction(("escape",), "Esc", "go_back", "close a dialog, details, search, filter or legend", "General"),
    KeyAction(("O",), "O", "show_setup", "setup: columns, panels, order, theme, page, devices, thresholds", "General"),
    KeyAction(("T",), "T", "next_theme", "next theme: dark, light, colour-blind, mono", "General"),
    KeyAction(("S",), "S", "save_screenshot", "save the screen as SVG", "General"),
    KeyAction(("plus", "equals_sign"), "+", "faster", "refresh, or replay, faster", "General"),
    KeyAction(("minus",), "-", "slower", "refresh, or replay, slower", "General"),
    KeyAction(("o", "f2"), "o, F2", "show_overview", "Overview: cores, vCPUs, memory", "Pages"),
    KeyAction(("w", "f3"), "w, F3", "show_processes", "Who holds my cores: the processes", "Pages"),
    KeyAction(("t", "f4"), "t, F4", "show_topology", "Topology: NeuronLink, hops", "Pages"),
    KeyAction(("h", "f5"), "h, F5", "show_history", "History: plots of a device or core", "Pages"),
    KeyAction(("m", "f8"), "m, F8", "show_heatmap", "Heat map: every core over time", "Pages"),
    KeyAction(("e", "f7"), "e, F7", "show_health", "Events and health", "Pages"),
    KeyAction(("u",), "u", "show_usage", "Users, and what processes used that have ended", "Pages"),
    KeyAction(("H",), "H", "show_host", "Host: vCPUs, network, disks, EFA, power, versions, our own cost", "Pages"),
    KeyAction(("tab",), "Tab", "next_page", "next page", "Pages"),
    KeyAction(("shift+tab",), "Shift-Tab", "previous_page", "previous page", "Pages"),
    KeyAction(tuple("123456789"), "1-9", "choose_tab", "choose a tab: 1 is all, then the processes", "Tabs"),
    KeyAction(("a",), "a", "previous_tab", "previous tab", "Tabs"),
    KeyAction(("d",), "d", "next_tab", "next tab", "Tabs"),
    KeyAction(("f",), "f", "toggle_flops", "cores in teraflops or in percent", "Overview"),
    KeyAction(("x",), "x", "toggle_tree", "open the whole memory tree, or all jobs, or fold them", "Overview"),
    KeyAction(("F",), "F", "fold_all", "unfold all jobs, or fold them", "Overview"),
    KeyAction(("v",), "v", "next_layout", "layout: full, compact for many jobs, or classic", "Overview"),
    KeyAction(("M",), "M", "next_plot_metric", "plot utilization, FLOPS, executions or HBM", "Overview"),
    KeyAction(("up", "k"), "Up, k", "move_up", "up", "Moving"),
    KeyAction(("down", "j"), "Down, j", "move_down", "down", "Moving"),
    KeyAction(("left",), "Left", "move_left", "fold a job or node; device or column to the left", "Moving"),
    KeyAction(("right",), "Right", "move_right", "unfold a job or node; device or column to the right", "Moving"),
    KeyAction(("pageup",), "PgUp", "page_up", "a screen up", "Moving"),
    KeyAction(("pagedown",), "PgDn", "page_down", "a screen down", "Moving"),
    KeyAction(("g", "home"), "g, Home", "move_first", "first row", "Moving"),
    KeyAction(("G", "end"), "G, End", "move_last", "last row", "Moving"),
    KeyAction(("enter",), "Enter", "enter", "unfold or fold a job or node; details; the device's history", "Moving"),
    KeyAction(("slash",), "/", "edit_filter", "filter: words and column<value, as user=root util<5", "Processes"),
    KeyAction(("backslash", "ctrl+f"), "\\, Ctrl-F", "edit_search", "search the list of the page", "Processes"),
    KeyAction(("s", "f6"), "s, F6", "choose_sort", "choose the columns to sort by, first and second", "Processes"),
    KeyAction(("less_than_sign",), "<", "sort_left", "sort by the column to the left", "Processes"),
    KeyAction(("greater_than_sign",), ">", "sort_right", "sort by the column to the right", "Processes"),
    KeyAction(("I",), "I", "invert_sort", "invert the order", "Processes"),
    KeyAction(("space",), "Space", "tag_process", "tag or untag a process", "Processes"),
    KeyAction(("U",), "U", "untag_all", "untag all", "Processes"),
    KeyAction(
        ("K", "f9"), "K, F9", "choose_signal", "send a signal to the tagged or the selected process", "Processes"
    ),
    KeyAction(
        ("Y",), "Y", "toggle_forest", "tree of all processes with parents and children, or the list", "Processes"
    ),
    KeyAction(("P",), "P", "toggle_time", "where the time of the process goes: parts, operators, graphs", "Processes"),
    KeyAction(("E",), "E", "toggle_surroundings", "environment and tree of the process, or its plots", "Processes"),
    KeyAction(("p", "z"), "p, z", "toggle_pause", "pause, and resume where it is live", "Time"),
    KeyAction(("left_square_bracket",), "[", "step_back", "one moment back", "Time"),
    KeyAction(("right_square_bracket",), "]", "step_forward", "one moment forward", "Time"),
    KeyAction(("left_curly_bracket",), "{", "leap_back", "a minute back", "Time"),
    KeyAction(("right_curly_bracket",), "}", "leap_forward", "a minute forward", "Time"),
    KeyAction(("n",), "n", "next_event", "to the next event, or match of a search", "Time"),
    KeyAction(("N",), "N", "previous_event", "to the previous event, or match", "Time"),
    KeyAction(("L",), "L", "go_live", "to the latest moment", "Time"),
    KeyAction(("R",), "R", "toggle_recording", "start or end a recording", "Time"),
    KeyAction(("c",), "c", "toggle_colouring", "colour devices by utilization or by memory", "Topology and history"),
    KeyAction(("l",), "l", "next_window", "time window of the plots: 1, 5, 15, 60 min", "Topology and history"),
)
ALWAYS = ("ctrl+c", "ctrl+z")  # these keys also work in dialogs and while the user types a filter
BY_KEY = {key: action for action in ACTIONS for key in action.keys}


def names_text() -> str:
    """Returns the text of --help-keys."""
    width = max(len(action.name) for action in ACTIONS)
    lines = [f"{action.name:<{width}}  {action.shown:<12}  {action.text}" for action in ACTIONS]
    return "Actions for the table [keys] of neuron-top.toml, and the keys that they usually have:\n\n" + "".join(
        f"  {line}\n" for line in lines
    )


def help_lines(actions: tuple[KeyAction, ...] = ACTIONS) -> tuple[str, ...]:
    lines: list[str] = []
    group = ""
    for action in actions:
        if action.group != group:
            group = action.group
            lines += ["", group] if lines else [group]
        lines.append(f"  {action.shown:<10} {action.text}")
    lines += [
        "",
        "The mouse: click tabs, rows, columns, devices; drag scroll bar and scrubber; the wheel scrolls.",
    ]
    return tuple(lines)


_FIXED = ("choose_tab",)  # actions whose keys can't be changed: the number keys select tabs
_MODIFIERS = frozenset(("ctrl", "alt", "shift"))
_MOST_TYPED = 200


class KeyMap:
    """Actions with their current keys.

    `changes` maps the names of actions to new keys, which replace their old keys. If the new key belonged to another
    action, that action loses the key. `problems` has an error text for each refused change.
    """

    def __init__(self, changes: Mapping[str, object] | None = None) -> None:
        self.problems: list[str] = []
        self.changed: dict[str, str] = {}
        """The changed keys of actions as text, by default key. Screens show these texts instead of the default keys."""
        self.actions = self._actions_with(changes) if changes else ACTIONS
        self.by_key = {key: action for action in self.actions for key in action.keys}

    def action(self, name: str) -> KeyAction:
        return next(action for action in self.actions if action.name == name)

    def _actions_with(self, changes: Mapping[str, object]) -> tuple[KeyAction, ...]:
        names = [action.name for action in ACTIONS]
        given: dict[str, str] = {}  # maps Textual's name of a key to the name of its action
        shown: dict[str, list[str]] = {}
        for name, value in changes.items():
            texts = [value] if isinstance(value, str) else value
            if name not in names or name in _FIXED:
                near = get_close_matches(str(name), names, n=1)
                guess = f"; did you mean {near[0]}?" if near and name not in _FIXED else ""
                self.problems.append(f"{str(name)[:40]!r} is no action with keys to change{guess}")
            elif not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                self.problems.append(f"{name}: give a key or a list of keys")
            else:
                shown[name] = []
                for text in texts:
                    key = textual_key(text)
                    other = given.get(key)
                    if not key or key in ALWAYS or other is not None or key in "123456789":
                        why = f"is that of {other}" if other else "can't be changed" if key else "is no key"
                        self.problems.append(f"{name}: {text[:20]!r} {why}")
                        continue
                    given[key] = name
                    shown[name].append(text)
        actions = []
        for action in ACTIONS:
            own = tuple(key for key, name in given.items() if name == action.name)
            if action.name in shown and (own or not changes[action.name]):
                fixed = tuple(key for key in action.keys if key in ALWAYS)
                text = ", ".join(shown[action.name])
            else:
                fixed, own = tuple(key for key in action.keys if key not in given), ()
                text = action.shown if fixed == action.keys else ", ".join(map(_display_name, fixed))
            if (own, fixed) != ((), action.keys):
                self.changed.update(dict.fromkeys(action.keys, text))
            actions.append(replace(action, keys=own + fixed, shown=text or "-"))
        return tuple(actions)


def textual_key(text: str) -> str:
    """Converts a key as users write it, such as `x`, `F5` or `Ctrl-X`, to Textual's name; "" if unknown."""
    from textual.keys import Keys

    from neurontools.tui.textual_private import character_to_key

    names = {key.value for key in Keys} | {"space"}
    if len(text) == 1:
        return character_to_key(text) if text.isprintable() else ""
    *modifiers, last = text.replace("-", "+").casefold().split("+")
    if len(last) == 1 and last.isprintable():
        last = character_to_key(last)
    elif last not in names and last not in _DEFAULTS:
        return ""
    return "+".join([*modifiers, last]) if set(modifiers) <= _MODIFIERS else ""


_DEFAULTS = frozenset(key for action in ACTIONS for key in action.keys)


def _display_name(key: str) -> str:
    """Converts Textual's name of a key for display: `ctrl+x` becomes `Ctrl+x`."""
    return "+".join(word.capitalize() if len(word) > 1 else word for word in key.split("+"))


def edited_text(text: str, key: str, character: str | None) -> str | None:
    """Returns the text after an editing key; None if the key does not edit text."""
    if key in ("backspace", "ctrl+h"):
        return text[:-1]
    if key == "ctrl+u":
        return ""
    if character is not None and character.isprintable() and len(text) < _MOST_TYPED:
        return text + character
    return None
