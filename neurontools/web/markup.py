"""Converts the lines that a terminal shows into HTML and CSS of the browser pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

from neurontools.util.formats import Markup, element, join_markup
from neurontools.util.terminal import escape_controls
from neurontools.views.drawing.lines import (
    DARK,
    FOUND,
    LIGHT,
    SELECTED,
    ClickTarget,
    Line,
    Style,
    TextPage,
    Theme,
    width_of,
)
from neurontools.web.page_query import PAGE_WIDTHS

HIDDEN = "x"
"""CSS class of segments that screen readers skip: rules, and bars whose number is next to them."""

Segment = tuple[str, str, str]
"""A text, its CSS classes ("" for plain text), and the URL that it links to ("" for no link)."""

Cell = tuple[Segment, ...]

Link = Callable[[ClickTarget], str]
"""Maps a click target to the URL of its link; "" for no link."""


class RowKind(StrEnum):
    """Kind of a row, which determines its HTML element."""

    TITLE = "t"
    HEADING = "h"
    COLUMNS = "c"  # the column titles of a table, one per cell
    ROW = "r"  # a row of a table, below its COLUMNS row
    ITEM = "i"  # an item of a list
    LINE = "l"
    TABS = "n"  # links to processes


Row = tuple[RowKind, tuple[Cell, ...]]
_TITLES = ("column", "column_sorted")


def rows_of(page: TextPage, link: Link, first: RowKind = RowKind.LINE) -> tuple[Row, ...]:
    """Converts a terminal page to rows of HTML cells. `first` is the kind of rows that match no other kind."""
    targets: dict[int, list[ClickTarget]] = {}
    for target in page.targets:
        targets.setdefault(target.row, []).append(target)
    found: list[Row] = []
    places: list[int] = []  # for each column of the current table, the terminal column where it starts
    for number, line in enumerate(page.lines):
        of_row = targets.get(number, ())
        is_listed = any(target.action == "row" for target in of_row)
        pieces = _linked(_pieces(line), of_row, link)
        if _is_column_header(line):
            places = _column_starts(line)
            found.append((RowKind.COLUMNS, _cells(pieces, places)))
        elif is_listed or (places and _has_text(line) and not _is_heading(line)):
            found.append((RowKind.ROW, _cells(pieces, places)) if places else (RowKind.ITEM, (_cell(pieces),)))
        else:
            places = []
            kind = RowKind.TITLE if _is_title(line) else RowKind.HEADING if _is_heading(line) else first
            found.append((kind, (_cell(pieces),)))
    while found and not any(found[-1][1]):
        found.pop()
    return tuple(found)


_Piece = tuple[int, str, str, str]  # part of a line: terminal column of its first character, text, style, URL


def _pieces(line: Line) -> list[_Piece]:
    pieces, at = [], 0
    for text, style in line:
        if text:
            pieces.append((at, text if text.isprintable() else escape_controls(text), style, ""))
            at += width_of(text)
    return pieces


def _linked(pieces: list[_Piece], targets: Iterable[ClickTarget], link: Link) -> list[_Piece]:
    """Adds links to a line. In each click target, the first piece with a letter or digit becomes a link."""
    for target in targets:
        address = link(target)
        if not address:
            continue
        for number, (at, text, style, _) in enumerate(pieces):
            right = target.right
            if at + width_of(text) <= target.left or at >= right:
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
            runs = [(left_part, ""), (middle, address), (right_part, "")]
            changed: list[_Piece] = []
            here = at
            for part, leads in runs:
                if part:
                    changed.append((here, part, style, leads))
                    here += width_of(part)
            pieces[number : number + 1] = changed
            break
    return pieces


def _cell(pieces: Sequence[_Piece], *, is_last: bool = True) -> Cell:
    """Joins adjacent pieces of the same style to segments. Drops plain blanks at the end of a row."""
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
    """Splits the pieces of a line into table cells. Pieces right of the last title join the last cell."""
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
    """Returns the CSS classes of a text: its style, its width if not ASCII, and HIDDEN if it is a rule or bar."""
    style = style.replace(SELECTED, "").replace(FOUND, "")
    classes = [] if style == "text" or (text.isspace() and style in ("dim", "rule", "track", "")) else [style]
    if not text.isspace() and not any(map(str.isalnum, text)) and (style in ("rule", "track") or not text.isascii()):
        classes.append(HIDDEN)
    if not text.isascii():
        classes.append(f"_{width_of(text)}")
    return " ".join(filter(None, classes))


def _is_column_header(line: Line) -> bool:
    return bool(line) and all(style in _TITLES for text, style in line if text)


def _is_heading(line: Line) -> bool:
    return any(style.startswith("heading") for _, style in line[:2])


def _is_title(line: Line) -> bool:
    return bool(line) and line[0][1] == "title"


def _has_text(line: Line) -> bool:
    return any(text.strip() for text, _ in line)


def _column_starts(line: Line) -> list[int]:
    """Returns the terminal column where each table column starts. The first starts at 0."""
    starts, at = [], 0
    for text, _ in line:
        if text.strip():
            starts.append(at)
        at += width_of(text)
    return [0, *starts[1:]]


_TAGS = {RowKind.TITLE: "h1", RowKind.HEADING: "h2", RowKind.TABS: "nav"}
_GROUPS = {RowKind.COLUMNS: "table", RowKind.ROW: "table", RowKind.ITEM: "list"}
_PAUSE_SECONDS = 5  # seconds between page reloads in a browser without JavaScript


@dataclass(frozen=True, slots=True)
class PageFrame:
    """The parts of a page around its rows: navigation, options, search form and notes."""

    title: str
    navigation: tuple[tuple[str, str, bool], ...]  # for each link: text, URL, whether it is the current page
    options: tuple[tuple[str, tuple[tuple[str, str, bool], ...]], ...] = ()  # option name, links that set it
    search: tuple[str, tuple[tuple[str, str], ...]] | None = None  # filter text, hidden form fields
    notes: tuple[str, ...] = ()
    name: str = ""  # name of the host if the server shows many hosts


def page_document(base: str, frame: PageFrame, rows: Sequence[Row], version: str, columns: int) -> bytes:
    """Returns the HTML of a page. `base` is the URL path of the script and style sheet and ends with a slash."""
    scheme = element("meta", name="color-scheme", content="light dark")
    refresh = element("noscript", element("meta", http_equiv="refresh", content=str(_PAUSE_SECONDS)))
    head = _head(base, frame.title, scheme=[scheme], refresh=[refresh])
    main = element("main", *_blocks(rows), id="screen", class_=f"c{columns}", data_version=version)
    body = element(
        "body",
        element("a", "To the figures", href="#screen", class_="skip"),
        element("header", *_navigation(frame)),
        element("p", id="state", role="status"),
        main,
        element("footer", *[element("p", note) for note in frame.notes]),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'.encode()


def notice_document(base: str, title: str, *content: str) -> bytes:
    """Returns the HTML of a page that shows a message instead of device data."""
    body = element("body", element("main", element("h1", title), *content, class_="notice"))
    return f'<!DOCTYPE html>\n<html lang="en">{_head(base, title)}{body}</html>\n'.encode()


def _head(base: str, title: str, *, scheme: Sequence[Markup] = (), refresh: Sequence[Markup] = ()) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *scheme,
        element("title", title),
        element("link", rel="stylesheet", href=f"{base}style.css"),
        element("link", rel="icon", href="data:,"),
        *refresh,
        element("script", src=f"{base}script.js", defer="defer"),
    )


def _navigation(frame: PageFrame) -> Iterator[Markup]:
    host = [element("strong", f"{frame.name} ")] if frame.name else []
    yield element("nav", *host, *_links(frame.navigation), aria_label="Pages")
    for name, choices in frame.options:
        yield element("nav", element("span", f"{name} "), *_links(choices), aria_label=name)
    if frame.search is not None:
        text, others = frame.search
        yield element(
            "form",
            *[element("input", type="hidden", name=name, value=value) for name, value in others],
            element("label", "Filter ", element("input", type="search", name="filter", value=text, maxlength="200")),
            element("button", "Show"),
            role="search",
        )


def _links(links: Sequence[tuple[str, str, bool]]) -> Iterator[Markup]:
    for text, address, is_current in links:
        yield element("a", text, href=address, aria_current="page") if is_current else element("a", text, href=address)
        yield Markup(" ")


def _blocks(rows: Sequence[Row]) -> Iterator[Markup]:
    """Yields the HTML of the rows. The rows of a table or a list share one element."""
    open_rows: list[Markup] = []
    group = ""
    for kind, cells in rows:
        group_tag = _GROUPS.get(kind, "")
        if open_rows and (group_tag != group or kind is RowKind.COLUMNS):
            yield element("div", *open_rows, role=group)
            open_rows = []
        group = group_tag
        block = _row(kind, cells)
        if group_tag:
            open_rows.append(block)
        else:
            yield block
    if open_rows:
        yield element("div", *open_rows, role=group)


def _row(kind: RowKind, cells: Sequence[Cell]) -> Markup:
    if kind in (RowKind.COLUMNS, RowKind.ROW):
        role = "columnheader" if kind is RowKind.COLUMNS else "cell"
        return element(
            "div", *[element("span", *map(_segment, cell), role=role) for cell in cells], class_="l", role="row"
        )
    content = [_segment(segment) for cell in cells for segment in cell]
    if kind is RowKind.ITEM:
        return element("div", *content, class_="l", role="listitem")
    if kind is RowKind.TABS:
        return element("nav", *content, class_="l", aria_label="Processes")
    return element(_TAGS.get(kind, "div"), *content, class_="l")


def _segment(segment: Segment) -> Markup:
    text, classes, address = segment
    if not classes and not address:
        return join_markup([text])
    attributes = {"class_": classes} if classes else {}
    if HIDDEN in classes.split():
        attributes["aria_hidden"] = "true"
    return element("a", text, href=address, **attributes) if address else element("span", text, **attributes)


_LAYOUT_CSS = """
:root{color-scheme:light dark}
html{overflow-y:scroll}
body{margin:0 auto;padding:.5rem 1rem;width:fit-content;max-width:calc(100vw - 2rem)}
body,input,button{font:14px/1.25 "DejaVu Sans Mono",ui-monospace,Menlo,Consolas,"Liberation Mono",monospace}
main{white-space:pre;overflow-x:auto}
h1,h2{font:inherit;margin:0}
.l{min-height:1.25em}
header nav a,header form{display:inline-block;margin-right:1ch}
header nav{margin-bottom:.3rem}
a{color:inherit}
main a{text-decoration-style:dotted;text-underline-offset:.2em}
a:focus-visible,input:focus-visible,button:focus-visible{outline:2px solid currentColor;outline-offset:2px}
header a[aria-current]{font-weight:bold;text-decoration:none}
.skip{position:absolute;left:-999em}.skip:focus{position:static}
#state{margin:0}#state:not(:empty){padding:.3rem 1ch;margin-bottom:.3rem;font-weight:bold}
.lost{opacity:.6}
footer{margin-top:1rem;max-width:80ch}footer p{margin:.2rem 0}
.notice{white-space:normal;max-width:72ch}.notice h1{font-weight:bold;font-size:1.3rem;margin:.5rem 0}
[class^=_],[class*=" _"]{display:inline-block;vertical-align:top;height:1.25em;overflow:hidden}
"""
_MAX_CELLS = max(PAGE_WIDTHS)
_CELL_EM = 0.602  # width of a character in common monospace fonts, in em


@cache
def style_sheet() -> bytes:
    """Returns the CSS: the light and dark themes, and characters as wide as terminal cells."""
    parts = [_LAYOUT_CSS]
    parts += [f"._{cells}{{width:{cells}ch}}" for cells in range(1, _MAX_CELLS + 1)]
    parts += [f".c{cells}{{font-size:min(1em,calc((100vw - 3rem)/{cells * _CELL_EM:.1f}))}}" for cells in PAGE_WIDTHS]
    parts.append(_theme_css(LIGHT, "#ffffff"))
    parts.append(f"@media(prefers-color-scheme:dark){{{_theme_css(DARK, '#0d1117')}}}")
    return "".join(parts).encode()


def _theme_css(theme: Theme, ground: str) -> str:
    text = theme.styles["text"]
    rules = [f"body{{background:{ground};color:{text.color}}}"]
    rules += [f".{name}{{{_style_css(style)}}}" for name, style in theme.styles.items() if name != "text"]
    rules.append(f"#state:not(:empty){{{_style_css(theme.styles['title_bad'])}}}")
    return "".join(rules)


def _style_css(style: Style) -> str:
    declared = []
    if style.color is not None:
        declared.append(f"color:{style.color}")
    if style.background is not None:
        declared.append(f"background:{style.background}")
    if style.bold:
        declared.append("font-weight:bold")
    return ";".join(declared)
