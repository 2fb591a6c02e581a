"""HTML documents and the style sheet of the pages: everything around the content of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from neurontools.util.formats import Markup, element
from neurontools.views.drawing.lines import DARK, LIGHT, LOADS, Theme
from neurontools.web.nodes import Node, html

_PAUSE_SECONDS = 5  # seconds between page reloads in a browser without JavaScript
_STYLES = ("text", "dim", "label", "good", "warn", "bad", "busy", "track", *LOADS)

Link = tuple[str, str, bool]
"""The text and URL of a link, and whether it leads to the current page."""


@dataclass(frozen=True, slots=True)
class PageFrame:
    """The parts of a page around its content: navigation, options, search form and notes."""

    title: str
    navigation: tuple[tuple[Link, str], ...]  # links, each with the key that follows it; "" for none
    options: tuple[tuple[str, tuple[Link, ...], str], ...] = ()  # name, links that set it, key for the next value
    search: tuple[str, tuple[tuple[str, str], ...]] | None = None  # filter text, hidden form fields
    notes: tuple[str, ...] = ()


def page_document(base: str, frame: PageFrame, content: Node, version: str) -> bytes:
    """Returns the HTML of a page. `base` is the URL path of the script and style sheet and ends with a slash.

    `version` is that of the content, from which the event stream continues.
    """
    refresh = element("noscript", element("meta", http_equiv="refresh", content=str(_PAUSE_SECONDS)))
    body = element(
        "body",
        element("a", "To the content", href="#page", class_="skip"),
        element("div", *_navigation(frame), class_="bar-top"),
        element("p", id="state", role="status"),
        html(content),
        element("footer", _keys(frame), *[element("p", note) for note in frame.notes]),
        data_version=version,
    )
    return f'<!DOCTYPE html>\n<html lang="en">{_head(base, frame.title, refresh)}{body}</html>\n'.encode()


def notice_document(base: str, title: str, *content: str) -> bytes:
    """Returns the HTML of a page that shows a message instead of device data."""
    body = element("body", element("main", element("h1", title), *content, class_="notice"))
    return f'<!DOCTYPE html>\n<html lang="en">{_head(base, title)}{body}</html>\n'.encode()


def _head(base: str, title: str, *more: Markup) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="stylesheet", href=f"{base}style.css"),
        element("link", rel="icon", href="data:,"),
        *more,
        element("script", src=f"{base}script.js", defer="defer"),
    )


def _navigation(frame: PageFrame) -> Iterator[Markup]:
    yield element("nav", *[_link(link, key) for link, key in frame.navigation], aria_label="Pages", class_="pages")
    for name, choices, key in frame.options:
        label = element("span", name, class_="dim")
        current = next((number for number, (_, _, is_current) in enumerate(choices) if is_current), -1)
        following = (current + 1) % len(choices)
        links = [_link(link, key if key and at == following else "") for at, link in enumerate(choices)]
        yield element("nav", label, *links, aria_label=name, class_="choice")
    if frame.search is not None:
        text, others = frame.search
        field = element("input", type="search", name="filter", value=text, maxlength="200", data_key="/")
        yield element(
            "form",
            *[element("input", type="hidden", name=name, value=value) for name, value in others],
            element("label", "Filter ", field),
            element("button", "Show"),
            role="search",
        )


def _link(link: Link, key: str = "") -> Markup:
    text, address, is_current = link
    attributes = {"aria_current": "page"} if is_current else {}
    if key:
        attributes |= {"data_key": key, "aria_keyshortcuts": f"Shift+{key}" if key.isupper() else key}
    return element("a", text, href=address, **attributes)


def _keys(frame: PageFrame) -> Markup:
    """Builds the list of keys, which the key ? opens and closes."""
    found = [(key, link[0]) for link, key in frame.navigation if key]
    found += [(key, f"next: {name}") for name, _, key in frame.options if key]
    found += [("/", "filter")] if frame.search is not None else []
    found += [
        ("j k", "next and previous link of a table"),
        ("p", "pause and continue"),
        ("Esc", "leave the filter; back"),
    ]
    items = [element("li", element("kbd", key), f" {text}") for key, text in (*found, ("?", "this list"))]
    return element("details", element("summary", "Keys"), element("ul", *items), id="keys")


@cache
def style_sheet() -> bytes:
    """Returns the CSS: the file style.css after the colours of the terminal's light and dark themes."""
    light, dark = _colours(LIGHT), _colours(DARK)
    rules = f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    loads = [f".core.{name}{{background:var(--{name})}}path.{name},rect.{name}{{fill:var(--{name})}}" for name in LOADS]
    loads += [f"td.{name}{{color:var(--{name})}}" for name in LOADS]
    text = files("neurontools.web").joinpath("style.css").read_text("utf-8")
    return "\n".join((rules, text, *loads)).encode()


def _colours(theme: Theme) -> str:
    colours = {name: theme.styles[name].color for name in _STYLES}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


@cache
def script() -> bytes:
    """Returns the script of the pages."""
    return files("neurontools.web").joinpath("script.js").read_bytes()


def message_page(title: str, text: str) -> Node:
    """Builds the content of a page that has nothing to show but a text."""
    found: Sequence[Node] = (("h1", {}, (title,)), ("p", {}, (text,)))
    return "main", {"id": "page"}, tuple(found)
