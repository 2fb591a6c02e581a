"""Pictures of neuron-top as SVG, the same every time in one time zone, and its screens as text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from neurontools.tui.app import NeuronTop
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.paths import ROOT
from tests.harness.pressed_keys import press
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import MOMENTS, StillFeed
from tests.harness.typed_keys import type_keys

README_PICTURE = ROOT / "docs/neuron-top.svg"
PICTURE_SIZE = (120, 36)
TEXT_SIZES = ((80, 24), (200, 50))
_README_SIZE = (120, 42)
_README_CORES = 20
_FONTS_AND_LINE_CLIPS = re.compile(
    r'@font-face \{.*?\}\s*|<clipPath id="terminal-line-\d+">.*?</clipPath>\s*| clip-path="url\(#terminal-line-\d+\)"',
    re.DOTALL,
)


async def picture(app: NeuronTop, size: tuple[int, int], keys: tuple[str, ...] = ()) -> str:
    """Returns what the application shows after these keys, its times in the zone that is set."""
    async with app.run_test(size=size) as pilot:
        await type_keys(pilot, *keys)
        await pilot.pause()
        drawn = app.export_screenshot(title="neuron-top")
    return re.sub(r"terminal-\d+", "terminal", drawn)


def short_picture(drawn: str) -> str:
    """Returns a picture without web fonts, clip paths of lines and empty lines; a rule of style takes one line."""
    short = _FONTS_AND_LINE_CLIPS.sub("", drawn)
    short = re.sub(r"\{[^{}]*\}", lambda match: " ".join(match[0].split()), short)
    return re.sub(r"\n\s*\n", "\n", short)


def screens(make_dashboard: Callable[[], Dashboard], keys: tuple[str, ...] = ()) -> str:
    """Returns the text of a new dashboard after these keys, at the sizes that have no picture."""
    parts = []
    for width, height in TEXT_SIZES:
        shown = press(make_dashboard(), *keys, size=(width, height))
        parts += [f"{width}x{height}", *(line.rstrip() for line in shown.splitlines())]
    return "\n".join(parts) + "\n"


async def readme_picture() -> str:
    """Returns the overview of a host on which one rank of a job stands still and the others wait for it."""
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=_README_CORES)
    taken = [host.at(float(second)) for second in range(1, MOMENTS + 1)]
    return await picture(NeuronTop(Dashboard(StillFeed(taken), Settings(), UNICODE), "dark"), _README_SIZE)


def without_version(drawn: str) -> str:
    """Returns the same for any version."""
    return re.sub(r"neuron-top \d[\w.]*", "neuron-top VERSION", drawn)


def is_as_stored(drawn: str, path: Path) -> bool:
    """Returns whether a file has this picture; UPDATE_GOLDEN=1 writes it."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    return without_version(path.read_text("utf-8")) == without_version(drawn)
