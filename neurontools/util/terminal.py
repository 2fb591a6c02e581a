"""Makes text safe for a terminal, measures its width, and finds the size and encoding of the terminal.

For untrusted text (commands, tags, model names): escape it, then truncate it, then measure it with `cell_width`.
"""

from __future__ import annotations

import os

_ELLIPSIS = "..."
_LARGEST_SIZE = 1000  # largest accepted value of the variables COLUMNS and LINES, which users can set to any number

# Characters that change the writing direction, which can make a text look like another text.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separator.
_RAW_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NO_CELL_CATEGORIES = frozenset({"Mn", "Me", "Cf", "Cc", "Cs", "Zl", "Zp"})
_JOINER, _EMOJI_SELECTOR = "\u200d", "\ufe0f"
_EXTENDERS = frozenset((_JOINER, _EMOJI_SELECTOR, "\ufe0e", "\u20e3"))
_FLAG_LETTERS = {chr(0x1F1E6 + index): chr(ord("A") + index) for index in range(26)}
# ASCII, frames, blocks and braille, of which pages draw long texts
_NARROW = frozenset(map(chr, [*range(0x20, 0x7F), *range(0x2500, 0x25A0), *range(0x2800, 0x2900)]))
_SOFT_HYPHEN = "\u00ad"  # a format character (Cf) that terminals draw nevertheless


def escape_controls(text: str) -> str:
    r"""Escapes every character that a terminal would interpret, such as "\x1b", "\x9b", "\u202e", "\udc80".

    These are C0 (also newline and tab), DEL, C1, direction controls, line and paragraph separators, and lone
    surrogates, which print cannot encode. Backslashes are not escaped, so the result cannot be converted back.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape_control, text))


def escape_controls_by_line(text: str) -> str:
    return "\n".join(map(escape_controls, text.split("\n")))


def _escape_control(character: str) -> str:
    import unicodedata  # imported late, because printable text does not need this module

    if unicodedata.category(character) not in _RAW_CATEGORIES and character not in _BIDI_CONTROLS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def truncate(text: str, width: int) -> str:
    """Shortens text to at most `width` characters. A shortened text ends with "...".

    The width is in characters, not terminal cells, as in the original tools.
    """
    if len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[: max(width, 0)]
    return text[: width - len(_ELLIPSIS)] + _ELLIPSIS


def excerpt(text: str, width: int) -> str:
    """Escapes the control characters of a text and truncates the result to `width` characters."""
    return truncate(escape_controls(text), width)


def error_excerpt(text: str) -> str:
    """Returns up to 60 characters of a user's input for an error message, or a pair of quotes for an empty input."""
    return excerpt(text, 60) or '""'


def cell_width(text: str) -> int:
    """Returns the number of terminal cells of a text: 2 per wide East Asian character or emoji, 0 per combining mark.

    An emoji with its joined emoji, variation selector or skin tone counts 2, as in Textual. Characters that
    `escape_controls` escapes count 0.
    """
    if (text.isascii() and text.isprintable()) or _NARROW.issuperset(text):
        return len(text)
    return sum(map(_cluster_cells, split_clusters(text)))


def split_clusters(text: str) -> list[str]:
    """Splits a text into grapheme clusters: characters that a terminal draws as one."""
    clusters: list[str] = []
    for character in text:
        last = clusters[-1] if clusters else ""
        is_joined = (
            character in _EXTENDERS
            or (last.endswith(_JOINER) and _character_cells(last[0]) == 2)
            or ("\U0001f3fb" <= character <= "\U0001f3ff" and _character_cells(last[:1] or " ") == 2)
            or (len(last) == 1 and _is_flag_letter(last) and _is_flag_letter(character))
        )
        if last and is_joined:
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


def with_certain_width(text: str) -> str:
    """Replaces characters that terminals draw in different widths: joined emoji by the first one, flags by letters."""
    if text.isascii():
        return text
    return "".join(
        "".join(_FLAG_LETTERS.get(letter, "") for letter in cluster) or cluster[0] for cluster in split_clusters(text)
    )


def _is_flag_letter(character: str) -> bool:
    return character in _FLAG_LETTERS


def _cluster_cells(cluster: str) -> int:
    cells = _character_cells(cluster[0])
    return 2 if len(cluster) > 1 and cells and (_EMOJI_SELECTOR in cluster or _is_flag_letter(cluster[0])) else cells


def _character_cells(character: str) -> int:
    import unicodedata  # imported late, because printable ASCII does not need this module

    if character == _SOFT_HYPHEN:
        return 1
    # Terminals draw Hangul vowels and finals (U+1160-U+11FF) in the cells of the initial consonant before them.
    if unicodedata.category(character) in _NO_CELL_CATEGORIES or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def terminal_size(descriptor: int = 1, default: tuple[int, int] = (80, 24)) -> tuple[int, int]:
    """Returns the columns and lines of the terminal at a descriptor.

    If there is no terminal or it reports 0x0 (serial consoles, expect, some shells in containers), uses the variables
    COLUMNS and LINES, else `default`.
    """
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns, lines = 0, 0
    return columns or _size_variable("COLUMNS") or default[0], lines or _size_variable("LINES") or default[1]


def locale_is_utf8() -> bool:
    """Returns whether the encoding of the locale is UTF-8. True if no locale is set."""
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := os.environ.get(name))), "")
    return locale == "" or "utf" in locale.casefold()


def _size_variable(variable: str) -> int:
    text = os.environ.get(variable, "")
    return min(int(text), _LARGEST_SIZE) if text.isascii() and text.isdigit() and len(text) < 10 else 0
