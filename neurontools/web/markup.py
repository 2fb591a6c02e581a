"""From rows to the page as it is sent first: whole without a script, and what the script then goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neurontools.util.formats import Markup, element, join_markup
from neurontools.web.rows import HIDDEN, Cell, Kind, Row, Segment

_TAGS = {Kind.TITLE: "h1", Kind.HEADING: "h2", Kind.TABS: "nav"}
_GROUPS = {Kind.COLUMNS: "table", Kind.ROW: "table", Kind.ITEM: "list"}
_PAUSE_SECONDS = 5  # between two pages without a script


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around the rows: all texts, and addresses that were made here."""

    title: str
    navigation: tuple[tuple[str, str, bool], ...]  # text, address, whether it is this page
    options: tuple[tuple[str, tuple[tuple[str, str, bool], ...]], ...] = ()  # what is chosen, and the choices
    search: tuple[str, tuple[tuple[str, str], ...]] | None = None  # the filter, and what else the address has
    notes: tuple[str, ...] = ()
    name: str = ""  # of the host, where there are many


def document(base: str, frame: Frame, rows: Sequence[Row], version: str, columns: int) -> bytes:
    """The page; script and style sheet are at `base`."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", frame.title),
        element("link", rel="stylesheet", href=f"{base}style.css"),
        element("link", rel="icon", href="data:,"),
        element("noscript", element("meta", http_equiv="refresh", content=str(_PAUSE_SECONDS))),
        element("script", src=f"{base}script.js", defer="defer"),
    )
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


def notice(base: str, title: str, *content: str) -> bytes:
    """A page that says something in place of figures."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="stylesheet", href=f"{base}style.css"),
        element("link", rel="icon", href="data:,"),
        element("script", src=f"{base}script.js", defer="defer"),
    )
    body = element("body", element("main", element("h1", title), *content, class_="notice"))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'.encode()


def _navigation(frame: Frame) -> Iterator[Markup]:
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
    """The rows, those of a table and of a list together."""
    open_rows: list[Markup] = []
    group = ""
    for kind, cells in rows:
        wanted = _GROUPS.get(kind, "")
        if open_rows and (wanted != group or kind is Kind.COLUMNS):
            yield element("div", *open_rows, role=group)
            open_rows = []
        group = wanted
        made = _row(kind, cells)
        if wanted:
            open_rows.append(made)
        else:
            yield made
    if open_rows:
        yield element("div", *open_rows, role=group)


def _row(kind: Kind, cells: Sequence[Cell]) -> Markup:
    if kind in (Kind.COLUMNS, Kind.ROW):
        role = "columnheader" if kind is Kind.COLUMNS else "cell"
        return element(
            "div", *[element("span", *map(_segment, cell), role=role) for cell in cells], class_="l", role="row"
        )
    content = [_segment(segment) for cell in cells for segment in cell]
    if kind is Kind.ITEM:
        return element("div", *content, class_="l", role="listitem")
    if kind is Kind.TABS:
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
