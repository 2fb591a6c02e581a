"""Screens of neuron-top as text, styles and clicks, and its picture in README; the same every time in one time zone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rich.segment import Segment

from neurontools.tui.app import NeuronTop
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.dashboard_widget import rich_style
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import FOUND, SELECTED, THEMES, TextPage, line_width, plain_text
from tests.harness.paths import ROOT
from tests.harness.pressed_keys import draw, type_keys
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import MOMENTS, StillFeed

PICTURES = {  # theme, load and keys of each picture
    ROOT / "docs/neuron-top.svg": ("dark", "stuck-core", ""),
    ROOT / "docs/neuron-top-light.svg": ("light", "stuck-core", ""),
    ROOT / "docs/neuron-top-heatmap.svg": ("dark", "steady", "m"),
}
Size = tuple[int, int]
SMALL, MIDDLE, LARGE = SIZES = (80, 24), (120, 36), (200, 50)
_PICTURE_SIZE = (120, 42)
_PICTURE_CORES = 20


async def screens(app: NeuronTop, keys: tuple[str, ...], sizes: tuple[Size, ...]) -> str:
    """Returns what the application shows after these keys at these sizes, as `screen_rows`."""
    async with app.run_test(size=MIDDLE) as pilot:
        await type_keys(pilot, *keys)
        await pilot.pause()
        strips = app.dashboard_widget.render_lines(app.dashboard_widget.size.region)
    for strip, line in zip(strips, draw(app.dashboard, *MIDDLE).lines, strict=True):
        assert list(strip) == [Segment(part, rich_style("dark", style)) for part, style in line], (
            "the application shows what is drawn"
        )
    parts = []
    for size in sizes:
        parts.append("{}x{}".format(*size))
        parts += without_repeated(screen_rows(draw(app.dashboard, *size)))
    return "\n".join(parts) + "\n"


def screen_rows(page: TextPage) -> list[str]:
    """Returns the rows of a page: the text, the number of cells of each style, and what a click on which cells does."""
    rows = []
    for number, line in enumerate(page.lines):
        text = plain_text(line)
        styles = ", ".join(f"{line_width(tuple(run))} {style}" for style, run in groupby(line, key=itemgetter(1)))
        clicks = ", ".join(
            f"{left}-{right} {action} {argument}"
            for row, left, right, action, argument in page.targets
            if row == number
        )
        rows.append(f"{text}  {styles}{clicks and ';'} {clicks}".rstrip() if text.strip() or clicks else "")
    return rows


def without_repeated(rows: Iterable[str]) -> Iterator[str]:
    """Yields rows, and the number of those that are the same as the row before instead of them."""
    for row, same in groupby(rows):
        yield row
        if more := len(list(same)) - 1:
            yield f"({more} more)"


def style_texts() -> str:
    """Returns a line for each style: its colours and attributes in each theme."""
    lines = [" | ".join(("style", *THEMES))]
    for name in (*THEMES["dark"].styles, f"text{SELECTED}", f"text{FOUND}", f"dim{FOUND}", f"key{SELECTED}"):
        texts = (re.sub(r"not \w+ ", "", str(rich_style(theme, name))) for theme in THEMES)
        lines.append(" | ".join((name, *texts)))
    return "\n".join(lines) + "\n"


async def screenshot(theme: str, load: str, keys: str) -> str:
    """Returns the page that these keys show of a host with a synthetic load; of "stuck-core", one rank stands still.

    Its times are in the zone that is set.
    """
    host = ScenarioHost("trn1.32xlarge", load, neuroncores=_PICTURE_CORES)
    snapshots = [host.at(float(second)) for second in range(1, MOMENTS + 1)]
    app = NeuronTop(Dashboard(StillFeed(snapshots), DashboardSettings(), UNICODE), theme)
    async with app.run_test(size=_PICTURE_SIZE) as pilot:
        await type_keys(pilot, *keys)
        await pilot.pause()
        drawn = app.export_screenshot(title="neuron-top")
    return re.sub(r"terminal-\d+", "terminal", drawn)


def without_version(drawn: str) -> str:
    """Returns the same for any version."""
    return re.sub(r"neuron-top \d[\w.]*", "neuron-top VERSION", drawn)


def is_as_stored(drawn: str, path: Path) -> bool:
    """Returns whether a file has this picture; UPDATE_GOLDEN=1 writes it."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    return without_version(path.read_text("utf-8")) == without_version(drawn)


def rounded(document: object) -> str:
    """The document on a line, its numbers with six digits."""
    text = json.dumps(document, allow_nan=False)
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}")))
