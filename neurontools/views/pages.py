"""The pages of neuron-top, by name: one table that the keys, the key bar and the drawing go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from neurontools.views.drawing.line import Page
from neurontools.views.drawing.scene import Scene
from neurontools.views.overview.page import overview


@dataclass(frozen=True, slots=True)
class PageKind:
    """A page: its name, the key that shows it, its titles, how it is drawn, and the keys worth telling."""

    name: str
    key: str
    title: str
    short_title: str
    draw: Callable[[Scene, int, int], Page]
    hints: tuple[tuple[str, str, str], ...]  # what is shown as key, text, and the key's name
    shows_past: bool = False  # not the moment alone, but what was before it


def _processes(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.processes.page import process_page

    return process_page(scene, width, height)


def _topology(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.topology.page import topology_page

    return topology_page(scene, width, height)


def _history(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.history_page import history_page

    return history_page(scene, width, height)


def _heatmap(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.heatmap_page import heatmap_page

    return heatmap_page(scene, width, height)


def _health(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.health_page import health_page

    return health_page(scene, width, height)


def _usage(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.usage.page import usage_page

    return usage_page(scene, width, height)


def _host(scene: Scene, width: int, height: int) -> Page:
    from neurontools.views.host.page import host_page

    return host_page(scene, width, height)


_TIME = (("p", "pause", "p"), ("[ ]", "time", "left_square_bracket"))
PAGES = (
    PageKind(
        "overview",
        "o",
        "Overview",
        "Over",
        overview,
        (("x", "tree", "x"), ("f", "FLOPS", "f"), ("v", "compact", "v"), *_TIME),
    ),
    PageKind(
        "processes",
        "w",
        "Who holds my cores",
        "Who",
        _processes,
        (("/", "filter", "slash"), ("s", "sort", "s"), ("x", "jobs", "x"), *_TIME),
    ),
    PageKind("topology", "t", "Topology", "Topo", _topology, (("c", "colour", "c"), *_TIME)),
    PageKind("history", "h", "History", "Hist", _history, (("l", "window", "l"), *_TIME), True),
    PageKind("heatmap", "m", "Heat map", "Map", _heatmap, (("l", "window", "l"), *_TIME), True),
    PageKind("health", "e", "Events and health", "Events", _health, (("n", "next event", "n"), *_TIME), True),
    PageKind("usage", "u", "Users", "Users", _usage, _TIME),
    PageKind("host", "H", "Host", "Host", _host, _TIME),
)


@cache
def page_named(name: str) -> PageKind:
    """The page of this name; the first for any other."""
    return next((page for page in PAGES if page.name == name), PAGES[0])
