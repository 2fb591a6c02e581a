"""A terminal for neuron-top, and a training for it to show; a dashboard without a terminal."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness import dashboard_terminal
from tests.harness.dashboard_terminal import Terminal
from tests.harness.running_daemon import RunningDaemon, shared
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


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[RunningDaemon]:
    """One daemon for a module. It ticks seldom: what it remembers is asked for again and again."""
    with shared("--simulate", "trn1.32xlarge", "--interval", "0.1") as daemon:
        yield daemon


@pytest.fixture
def training(daemon: RunningDaemon) -> Iterator[subprocess.Popen[str]]:
    with dashboard_terminal.training(daemon.socket) as process:
        yield process


@pytest.fixture
def dashboard() -> Dashboard:
    return Dashboard(StillFeed(snapshots()), DashboardSettings(), UNICODE)
