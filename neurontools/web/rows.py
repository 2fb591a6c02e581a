"""From the lines of a page to rows that a browser shows and a screen reader reads: headings, tables, lists, links.

Pure. Both the page as it is sent first and what is sent of it later are made of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

from neurontools.util.terminal import escape_controls
from neurontools.views.drawing.line import Line, Page, Target, width_of
from neurontools.views.drawing.style import FOUND, SELECTED

HIDDEN = "x"
"""The class of what is drawn and not read out: rules, and bars beside which their figure stands."""

Segment = tuple[str, str, str]
"""A text, its classes ("" for plain text) and where it leads ("" for nowhere)."""

Cell = tuple[Segment, ...]

Link = Callable[[Target], str]
"""Where a target leads, as an address; "" for nowhere."""


class Kind(StrEnum):
    """What a row is."""

    TITLE = "t"
    HEADING = "h"
    COLUMNS = "c"  # the titles of a table, one a cell
    ROW = "r"  # a row of the table whose titles are above it
    ITEM = "i"  # of a list
    LINE = "l"
    TABS = "n"  # processes to choose from


Row = tuple[Kind, tuple[Cell, ...]]
_TITLES = ("column", "column_sorted")
_EVERYWHERE = 10_000  # the right end of targets that are a whole row


def rows_of(page: Page, link: Link, first: Kind = Kind.LINE) -> tuple[Row, ...]:
    """The rows of a page; `first` is what a row is about which nothing else is known."""
    targets: dict[int, list[Target]] = {}
    for target in page.targets:
        targets.setdefault(target.row, []).append(target)
    found: list[Row] = []
    places: list[int] = []  # where the cells of the table begin that is open
    for number, line in enumerate(page.lines):
        of_row = targets.get(number, ())
        is_listed = any(target.action == "row" for target in of_row)
        pieces = _linked(_pieces(line), of_row, link)
        if _is_titles(line):
            places = _places(line)
            found.append((Kind.COLUMNS, _cells(pieces, places)))
        elif is_listed or (places and _has_text(line) and not _is_heading(line)):
            found.append((Kind.ROW, _cells(pieces, places)) if places else (Kind.ITEM, (_cell(pieces),)))
        else:
            places = []
            kind = Kind.TITLE if _is_title(line) else Kind.HEADING if _is_heading(line) else first
            found.append((kind, (_cell(pieces),)))
    while found and not any(found[-1][1]):
        found.pop()
    return tuple(found)


_Piece = tuple[int, str, str, str]  # from which cell on, text, style, where it leads


def _pieces(line: Line) -> list[_Piece]:
    pieces, at = [], 0
    for text, style in line:
        if text:
            pieces.append((at, text if text.isprintable() else escape_controls(text), style, ""))
            at += width_of(text)
    return pieces


def _linked(pieces: list[_Piece], targets: Iterable[Target], link: Link) -> list[_Piece]:
    """The pieces, those that are first in a target with words in them being links."""
    for target in targets:
        address = link(target)
        if not address:
            continue
        for number, (at, text, style, _) in enumerate(pieces):
            right = min(target.right, _EVERYWHERE)
            end = at + width_of(text)
            if end <= target.left or at >= right:
                continue
            if width_of(text) != len(text):
                left_part, middle, right_part = "", text, ""
            else:
                cut, until = max(0, target.left - at), min(len(text), right - at)
                left_part, middle, right_part = text[:cut], text[cut:until], text[until:]
            if not any(map(str.isalnum, middle)):
                continue
            lead = len(middle) - len(middle.lstrip(" "))
            left_part, middle = left_part + middle[:lead], middle[lead:]
            words = middle.rstrip(" ")
            right_part, middle = middle[len(words) :] + right_part, words
            made = [(left_part, ""), (middle, address), (right_part, "")]
            changed: list[_Piece] = []
            here = at
            for part, leads in made:
                if part:
                    changed.append((here, part, style, leads))
                    here += width_of(part)
            pieces[number : number + 1] = changed
            break
    return pieces


def _cell(pieces: Sequence[_Piece], *, is_last: bool = True) -> Cell:
    """Segments, those alike behind each other as one; plain blanks at the end of a row are left out."""
    found: list[Segment] = []
    for _, text, style, address in pieces:
        classes = _classes(text, style)
        if found and not address and found[-1][1:] == (classes, "") and (text.isascii() or not classes):
            found[-1] = (found[-1][0] + text, classes, "")
        else:
            found.append((text, classes, address))
    if is_last and found and found[-1][1:] == ("", ""):
        found[-1] = (found[-1][0].rstrip(" "), "", "")
        if not found[-1][0]:
            found.pop()
    return tuple(found)


def _cells(pieces: Sequence[_Piece], places: Sequence[int]) -> tuple[Cell, ...]:
    """The cells of a table; what has no words below the last title belongs to it."""
    cells: list[list[_Piece]] = [[] for _ in places]
    for at, text, style, address in pieces:
        here, rest = at, text
        while rest:
            column = max((number for number, place in enumerate(places) if place <= here), default=0)
            until = places[column + 1] if column + 1 < len(places) else None
            cut = len(rest)
            if until is not None and here + width_of(rest) > until and width_of(rest) == len(rest) and not address:
                cut = max(1, until - here)
            cells[column].append((here, rest[:cut], style, address))
            here, rest = here + width_of(rest[:cut]), rest[cut:]
    return tuple(_cell(cell, is_last=number + 1 == len(cells)) for number, cell in enumerate(cells))


@lru_cache(8192)
def _classes(text: str, style: str) -> str:
    """The style; that it is only drawn; and how wide it is where a font may think otherwise."""
    style = style.replace(SELECTED, "").replace(FOUND, "")
    classes = [] if style == "text" or (text.isspace() and style in ("dim", "rule", "track", "")) else [style]
    if not text.isspace() and not any(map(str.isalnum, text)) and (style in ("rule", "track") or not text.isascii()):
        classes.append(HIDDEN)
    if not text.isascii():
        classes.append(f"_{width_of(text)}")
    return " ".join(filter(None, classes))


def _is_titles(line: Line) -> bool:
    return bool(line) and all(style in _TITLES for text, style in line if text)


def _is_heading(line: Line) -> bool:
    return any(style.startswith("heading") for _, style in line[:2])


def _is_title(line: Line) -> bool:
    return bool(line) and line[0][1] == "title"


def _has_text(line: Line) -> bool:
    return any(text.strip() for text, _ in line)


def _places(line: Line) -> list[int]:
    """Where the columns begin; one begins behind what is blank, and the first at the edge."""
    starts, at = [], 0
    for text, _ in line:
        if text.strip():
            starts.append(at)
        at += width_of(text)
    return [0, *starts[1:]]
