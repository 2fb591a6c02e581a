"""Text from elsewhere (commands, tags, model names) made fit for a terminal.

Apply in this order: `visible`, then `cut`, then measure with `cell_width`.
"""

from __future__ import annotations

_ELLIPSIS = "..."

# Characters that turn the writing direction, with which a text can show itself as another one.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separator.
_RAW_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NO_CELL_CATEGORIES = frozenset({"Mn", "Me", "Cf", "Cc", "Cs", "Zl", "Zp"})
_SOFT_HYPHEN = "\u00ad"  # a format character that terminals draw


def visible(text: str) -> str:
    r"""`text` with everything that a terminal would act on written as an escape: "\x1b", "\x9b", "\u202e", "\udc80".

    Covers C0 (also newline and tab), DEL, C1, direction controls, line and paragraph separators and lone surrogates
    (which would make print fail). All else, a backslash too, stays as it is: for reading, not for turning back.
    """
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def visible_lines(text: str) -> str:
    """`text` with every line made `visible`; its line ends stay."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(character: str) -> str:
    import unicodedata  # which plain text doesn't need

    if unicodedata.category(character) not in _RAW_CATEGORIES and character not in _BIDI_CONTROLS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cut(text: str, width: int) -> str:
    """`text` when it has at most `width` characters, else its start and `...`, together `width` characters.

    Counts characters, not cells, as the original tools do.
    """
    if len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[: max(width, 0)]
    return text[: width - len(_ELLIPSIS)] + _ELLIPSIS


def cell_width(text: str) -> int:
    """How many terminal cells `text` takes: 2 for a wide East Asian character or an emoji, 0 for a combining mark.

    Joined emoji count as their parts: terminals differ there. What `visible` would escape counts as nothing.
    """
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(_character_cells, text))


def _character_cells(character: str) -> int:
    import unicodedata

    if character == _SOFT_HYPHEN:
        return 1
    # The vowels and finals of Hangul syllables are drawn inside the cells of the initial before them.
    if unicodedata.category(character) in _NO_CELL_CATEGORIES or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
