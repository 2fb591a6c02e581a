"""Searching the list of a page: which rows are found, and what is told of that."""

from __future__ import annotations

import re
from collections.abc import Callable

from neurontools.views.drawing.scene import Scene
from neurontools.views.entry import Entry
from neurontools.views.health_page import event_entries
from neurontools.views.heatmap_page import core_entries
from neurontools.views.history_page import device_entries
from neurontools.views.host.page import traffic_entries
from neurontools.views.overview.page import overview_entries
from neurontools.views.processes.filter import InvalidFilter, parse_filter
from neurontools.views.processes.page import process_entries
from neurontools.views.usage.page import ended_entries


def entries(scene: Scene, *, every: bool = False) -> list[Entry]:
    """The rows of the page's list as they are shown, or as they would be with `every` row open; [] for no list."""
    read = _LISTS.get(scene.page)
    return read(scene, every) if read is not None else []


def found(scene: Scene, rows: list[Entry]) -> list[int]:
    """The positions of the rows that the search finds; none while there is nothing to look for.

    Several words are looked for as they stand, and where no row has them so, each by itself.
    """
    if not scene.search_text.strip():
        return []
    phrase = re.compile(_pattern(" ".join(scene.search_text.casefold().split())))
    if whole := [position for position, row in enumerate(rows) if phrase.search(row.text.casefold())]:
        return whole
    finds = _finder(scene.search_text)
    return [position for position, row in enumerate(rows) if finds(row)]


def place_text(scene: Scene) -> str:
    """Which of all matches the cursor is at."""
    rows = entries(scene, every=True)
    matches = found(scene, rows)
    if not matches:
        return "no match"
    shown = entries(scene)
    key = shown[scene.cursor].key if 0 <= scene.cursor < len(shown) else None
    keys = [rows[position].key for position in matches]
    return f"match {keys.index(key) + 1} of {len(keys)}" if key in keys else f"{len(keys)} found"


def _pattern(word: str) -> str:
    """A word anywhere in a text; but 3 is not found in 13, nor nc7 in nc70."""
    before = r"(?<!\d)" if word[0].isdecimal() else ""
    after = r"(?!\d)" if word[-1].isdecimal() else ""
    return f"{before}{re.escape(word)}{after}"


def _finder(text: str) -> Callable[[Entry], bool]:
    words = [re.compile(_pattern(word)) for word in text.casefold().split()]
    try:
        passes = parse_filter(text)
    except InvalidFilter:
        passes = None

    def finds(row: Entry) -> bool:
        own = row.text.casefold()
        if own and all(word.search(own) for word in words):
            return True
        return passes is not None and any(map(passes, row.processes))

    return finds


_LISTS: dict[str, Callable[[Scene, bool], list[Entry]]] = {
    "overview": overview_entries,
    "processes": process_entries,
    "topology": lambda scene, _every: device_entries(scene),
    "history": lambda scene, _every: device_entries(scene),
    "heatmap": lambda scene, _every: core_entries(scene),
    "health": lambda scene, _every: event_entries(scene),
    "usage": lambda scene, _every: ended_entries(scene),
    "host": lambda scene, _every: traffic_entries(scene),
}
