"""Themes of the reader's own, from tables such as a TOML file has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from neurontools.views.drawing.style import THEMES, Style, Theme

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}", re.ASCII)
_COLOURS = ("color", "background")
_ATTRIBUTES = ("bold", "dim", "reverse", "underline")


class InvalidTheme(ValueError):
    """A table that is no theme; the text says what of it, and what it takes."""


def own_theme(name: str, table: object) -> Theme:
    """The theme of a table: the styles of its `base` (dark unless given), with those that it names changed.

    A style is a colour (`"#rrggbb"`, or `""` for the terminal's own), or a table of `color`, `background`, `bold`,
    `dim`, `reverse` and `underline`; `selected` is the colour of the selected row's ground. InvalidTheme for anything
    else.
    """
    if not _NAME.fullmatch(name) or name in THEMES or name == "auto":
        taken = " and not that of another theme"
        raise InvalidTheme(f"{name[:40]!r} can't be its name; take up to 31 of a-z, 0-9 and -{taken}")
    if not isinstance(table, Mapping):
        raise InvalidTheme("must be a table of styles")
    base_name = table.get("base", "dark")
    if not isinstance(base_name, str) or base_name not in THEMES:
        raise InvalidTheme(f"base: {_shown(base_name)} is none of {', '.join(THEMES)}")
    base = THEMES[base_name]
    known = THEMES["dark"].styles
    styles = dict(base.styles)
    selected = base.selected_background
    for key, value in table.items():
        if key == "selected":
            selected = _colour(key, value)
        elif key in known:
            styles[key] = _style(key, value, styles.get(key, styles["text"]))
        elif key != "base":
            raise InvalidTheme(f"{_shown(key)} is no style; there are selected, {', '.join(known)}")
    return Theme(name, base.is_dark, styles, selected)


def _style(key: str, value: object, before: Style) -> Style:
    if not isinstance(value, Mapping):
        return replace(before, color=_colour(key, value))
    changes: dict[str, object] = {}
    for part, given in value.items():
        if part in _COLOURS:
            changes[part] = _colour(f"{key}.{part}", given)
        elif part not in _ATTRIBUTES:
            raise InvalidTheme(f"{key}: {_shown(part)} is none of {', '.join((*_COLOURS, *_ATTRIBUTES))}")
        elif not isinstance(given, bool):
            raise InvalidTheme(f"{key}.{part}: {_shown(given)} is neither true nor false")
        else:
            changes[part] = given
    return replace(before, **changes)  # type: ignore[arg-type]


def _colour(key: str, value: object) -> str | None:
    if value == "":
        return None
    if not isinstance(value, str) or not _COLOUR.fullmatch(value):
        raise InvalidTheme(f'{key}: {_shown(value)} is no colour; give "#rrggbb", or "" for the terminal\'s own')
    return value


def _shown(value: object) -> str:
    return repr(value)[:60]
