"""Text that is safe on a terminal, and what the terminal is like.

To show text from elsewhere (commands, tags, model names): escape it, then truncate it, then measure it with
`cell_width`.
"""

from __future__ import annotations

import os

_ELLIPSIS = "..."
_ERROR_EXCERPT_WIDTH = 60
_DEFAULT_SIZE = (80, 24)
_LARGEST_SIZE = 1000  # bounds COLUMNS and LINES, which may hold anything

# Characters that change the writing direction, with which a text can disguise itself as another.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separator.
_RAW_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NO_CELL_CATEGORIES = frozenset({"Mn", "Me", "Cf", "Cc", "Cs", "Zl", "Zp"})
_SOFT_HYPHEN = "\u00ad"  # a format character that terminals draw


def escape_controls(text: str) -> str:
    r"""Escapes every character that a terminal would act on: "\x1b", "\x9b", "\u202e", "\udc80".

    Covers C0 (also newline and tab), DEL, C1, direction controls, line and paragraph separators, and lone surrogates,
    which print cannot encode. A backslash stays as it is, so the result cannot be converted back.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape_control, text))


def escape_controls_by_line(text: str) -> str:
    """Escapes each line as `escape_controls` does. Line ends stay."""
    return "\n".join(map(escape_controls, text.split("\n")))


def _escape_control(character: str) -> str:
    import unicodedata  # plain text does not need it

    if unicodedata.category(character) not in _RAW_CATEGORIES and character not in _BIDI_CONTROLS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def truncate(text: str, width: int) -> str:
    """Shortens text to at most `width` characters; a shortened text ends in "...".

    Counts characters, not cells, as the original tools do.
    """
    if len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[: max(width, 0)]
    return text[: width - len(_ELLIPSIS)] + _ELLIPSIS


def excerpt(text: str, width: int) -> str:
    """Escapes control characters, then truncates."""
    return truncate(escape_controls(text), width)


def error_excerpt(text: str) -> str:
    """Returns up to 60 characters of a user's input for an error message; `""` stands for an empty input."""
    return excerpt(text, _ERROR_EXCERPT_WIDTH) or '""'


def cell_width(text: str) -> int:
    """Counts terminal cells: 2 for a wide East Asian character or an emoji, 0 for a combining mark.

    Joined emoji count as their parts, because terminals differ. Characters that `escape_controls` escapes count 0.
    """
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(_character_cells, text))


def _character_cells(character: str) -> int:
    import unicodedata  # plain text does not need it

    if character == _SOFT_HYPHEN:
        return 1
    # Terminals draw the vowels and finals of Hangul syllables inside the cells of the preceding initial.
    if unicodedata.category(character) in _NO_CELL_CATEGORIES or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def terminal_size(descriptor: int = 1, default: tuple[int, int] = _DEFAULT_SIZE) -> tuple[int, int]:
    """Returns columns and lines of the terminal at a descriptor, at least 1 each.

    Without a terminal, or if it reports 0x0 (serial consoles, expect, some shells in containers), uses COLUMNS and
    LINES, then `default`.
    """
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns, lines = 0, 0
    return columns or _size_variable("COLUMNS") or default[0], lines or _size_variable("LINES") or default[1]


def locale_is_utf8() -> bool:
    """Whether the locale's encoding is UTF-8. Also true if no locale is set."""
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := os.environ.get(name))), "")
    return locale == "" or "utf" in locale.casefold()


def _size_variable(variable: str) -> int:
    text = os.environ.get(variable, "")
    return min(int(text), _LARGEST_SIZE) if text.isascii() and text.isdigit() and len(text) < 10 else 0
