"""What a terminal is like: its size, and whether it shows more than ASCII."""

from __future__ import annotations

import os

_USUAL = (80, 24)
_LARGEST = 1000  # of COLUMNS and LINES: anything may stand there


def terminal_size(descriptor: int = 1, usual: tuple[int, int] = _USUAL) -> tuple[int, int]:
    """Columns and lines of the terminal at a descriptor, at least 1 each; `usual` where nothing tells.

    Serial consoles, expect and some shells in containers don't know (0x0); then, as where there is no terminal,
    COLUMNS and LINES count.
    """
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns, lines = 0, 0
    return columns or _said("COLUMNS") or usual[0], lines or _said("LINES") or usual[1]


def shows_unicode() -> bool:
    """Whether the locale is one of UTF-8; where none is set, what is read is taken for it."""
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := os.environ.get(name))), "")
    return locale == "" or "utf" in locale.casefold()


def _said(variable: str) -> int:
    text = os.environ.get(variable, "")
    return min(int(text), _LARGEST) if text.isascii() and text.isdigit() and len(text) < 10 else 0
