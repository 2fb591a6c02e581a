"""A terminal for neuron-top, and a training for it to show; a dashboard without a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.dashboard_terminal import TRAINING, Terminal
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import StillFeed, snapshots


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(*arguments, home=tmp_path, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def training(daemon: RunningDaemon) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, daemon.socket], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "attached\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def dashboard() -> Dashboard:
    return Dashboard(StillFeed(snapshots()), Settings(), UNICODE)
