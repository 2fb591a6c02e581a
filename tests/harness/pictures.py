"""Pictures of neuron-top as SVG, the same every time in one time zone."""

from __future__ import annotations

import os
import re
from pathlib import Path

from neurontools.tui.app import NeuronTop
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.paths import ROOT
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import MOMENTS, StillFeed
from tests.harness.typed_keys import type_keys

README_PICTURE = ROOT / "docs/neuron-top.svg"
_README_SIZE = (120, 42)
_README_CORES = 20


async def picture(app: NeuronTop, size: tuple[int, int], keys: tuple[str, ...] = ()) -> str:
    """What the application shows after these keys, its times in the zone that is set."""
    async with app.run_test(size=size) as pilot:
        await type_keys(pilot, *keys)
        await pilot.pause()
        drawn = app.export_screenshot(title="neuron-top")
    return re.sub(r"terminal-\d+", "terminal", drawn)


async def readme_picture() -> str:
    """The overview of a host on which one rank of a job stands still and the others wait for it."""
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=_README_CORES)
    taken = [host.at(float(second)) for second in range(1, MOMENTS + 1)]
    return await picture(NeuronTop(Dashboard(StillFeed(taken), Settings(), UNICODE), "dark"), _README_SIZE)


def without_version(picture: str) -> str:
    """The same for any version."""
    return re.sub(r"neuron-top \d[\w.]*", "neuron-top VERSION", picture)


def is_as_stored(drawn: str, path: Path) -> bool:
    """Whether a file has this picture; UPDATE_GOLDEN=1 writes it."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
    return without_version(path.read_text("utf-8")) == without_version(drawn)
