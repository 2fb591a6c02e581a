"""A recording in the dashboard: while it is being loaded, and when it is not whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from neurontools.client.feed import FeedState, ReplayFeed
from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.pressed_keys import press
from tests.harness.still_feed import snapshots, write_recording
from tests.harness.waiting import HANG_SECONDS, wait_until

COUNT = 12


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "some.neurec", snapshots("trn1.2xlarge", "steady")[:COUNT])


def test_the_end_of_a_recording_is_gone_to_as_it_is_loaded(recording: Path) -> None:
    feed = ReplayFeed(str(recording))
    dashboard = Dashboard(feed, DashboardSettings(), UNICODE)
    is_notified, go_on = threading.Event(), threading.Event()

    def stop_reading() -> None:
        is_notified.set()
        go_on.wait(HANG_SECONDS)

    feed.start(stop_reading)
    try:
        assert is_notified.wait(HANG_SECONDS)
        assert feed.drain() == 1, "the first moment is shown at once"
        dashboard.time.advance()
        assert ", loading, " in press(dashboard).splitlines()[0]
        assert " % so far; the view follows its end" in press(dashboard, "L").splitlines()[-1]
        go_on.set()
        wait_until(lambda: feed.status.link is FeedState.COMPLETE)
        feed.drain()
        dashboard.time.advance()
        assert dashboard.time.index == COUNT - 1
        assert "REPLAY paused " in press(dashboard).splitlines()[0]
        press(dashboard, "[")
        dashboard.time.advance()
        assert dashboard.time.index == COUNT - 2
        assert "replay at 60x" in press(dashboard, *"++++++")
    finally:
        go_on.set()
        feed.close()


def test_what_is_wrong_with_a_recording_is_told_once_and_the_keys_come_back(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.write_bytes(recording.read_bytes()[:-40])
    monkeypatch.chdir(recording.parent)  # so that the path leaves room for the message, whatever TMPDIR is
    feed = ReplayFeed(recording.name)
    dashboard = Dashboard(feed, DashboardSettings(), UNICODE)
    feed.start(lambda: None)
    try:
        wait_until(lambda: feed.status.link is FeedState.COMPLETE)
        feed.drain()
        dashboard.time.advance()
        first, later = press(dashboard).splitlines(), press(dashboard, "g").splitlines()
        assert "cut off within a snapshot" in first[-1]
        assert " q quit " in later[-1]
        assert all("not whole" in shown[0] for shown in (first, later))
    finally:
        feed.close()
