"""The past comes beside the watching: from real daemons, over lines that break."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from neurontools.cli.top.command import main as neuron_top
from neurontools.client import Client
from neurontools.client.backfill import PIECE, Backfill
from neurontools.client.feed import FeedState, LiveFeed
from tests.harness.command import call_main
from tests.harness.cut_line import CutLine
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.02")


@pytest.fixture
def feed_at() -> Iterator[Callable[[str], LiveFeed]]:
    feeds: list[LiveFeed] = []

    def start(path: str) -> LiveFeed:
        feeds.append(LiveFeed(path, 0.05))
        feeds[-1].start(lambda: None)
        return feeds[-1]

    yield start
    for feed in feeds:
        feed.close()


@pytest.fixture
def line_to(daemon: RunningDaemon) -> Iterator[Callable[..., CutLine]]:
    lines: list[CutLine] = []

    def lay(*rule: Callable[[bytes], int | None]) -> CutLine:
        lines.append(CutLine(Path(daemon.socket).with_suffix(".line"), daemon.socket, *rule))
        return lines[-1]

    yield lay
    for line in lines:
        line.close()


def sequences(feed: LiveFeed) -> list[int]:
    feed.drain()
    return [moment.sequence for moment in feed.timeline.moments]


def is_whole(feed: LiveFeed) -> bool:
    """Whether all that the daemon made is there. One or the other that came while a tick was late may be missing."""
    found = sequences(feed)
    return not feed.is_loading_past and bool(found) and found[0] <= 2


def grown(daemon: RunningDaemon, ticks: int) -> None:
    wait_until(lambda: daemon.snapshot().sequence >= ticks)


def remembered(daemon: RunningDaemon, first: int, last: int) -> set[int]:
    """The snapshots that the daemon still has of these: what it told of between two ticks it has not kept."""
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        kept = {snapshot.sequence for snapshot in client.history()}
    return kept & set(range(first, last + 1))


@pytest.mark.slow
def test_the_whole_past_comes_by_itself(daemon: RunningDaemon, feed_at: Callable[[str], LiveFeed]) -> None:
    grown(daemon, 2 * PIECE)
    feed = feed_at(daemon.socket)
    wait_until(lambda: is_whole(feed))
    found = sequences(feed)
    assert len(found) > PIECE, "more than one piece; a daemon whose ticks are late leaves numbers out"
    assert all(after > before for before, after in pairwise(found))
    assert feed.status.link is FeedState.LIVE


@pytest.mark.slow
def test_watching_goes_on_while_no_past_comes(
    daemon: RunningDaemon, feed_at: Callable[[str], LiveFeed], line_to: Callable[..., CutLine]
) -> None:
    line = line_to(lambda said: 0 if b"ListHistory" in said else None)
    grown(daemon, PIECE)
    feed = feed_at(line.path)
    wait_until(lambda: len(sequences(feed)) >= 20)
    assert feed.status.link is FeedState.LIVE
    assert feed.is_loading_past
    assert sequences(feed)[0] >= PIECE


@pytest.mark.slow
def test_a_screen_waits_for_the_past_and_says_if_it_is_incomplete(
    daemon: RunningDaemon, line_to: Callable[..., CutLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(daemon, 2 * PIECE)
    cut = line_to(lambda said: 0 if b"ListHistory" in said else None)
    incomplete = "neuron-top: the past is incomplete: "
    for path, past_seconds, problem in ((daemon.socket, HANG_SECONDS, ""), (cut.path, 0.2, incomplete)):
        monkeypatch.setattr("neurontools.cli.top.documents._PAST_SECONDS", past_seconds)
        shown = call_main(neuron_top, "--socket", path, "--once", "--page", "health")
        assert (shown.returncode, "Events" in shown.stdout) == (0, True)
        assert shown.stderr.startswith(problem), shown.stderr
        assert bool(shown.stderr) == bool(problem)


@pytest.mark.slow
def test_what_breaks_off_is_kept_and_gone_on_with(
    daemon: RunningDaemon, feed_at: Callable[[str], LiveFeed], line_to: Callable[..., CutLine]
) -> None:
    tries = count()
    asked: list[int] = []

    def limit(said: bytes) -> int | None:
        if b"ListHistory" not in said:
            return None
        asked.append(next(tries))
        return 40_000 if len(asked) <= 3 else None  # less than a piece

    grown(daemon, 2 * PIECE)
    latest = daemon.snapshot().sequence
    feed = feed_at(line_to(limit).path)
    wait_until(lambda: len(asked) >= 3)
    feed.drain()
    wait_until(lambda: is_whole(feed))
    found = sequences(feed)
    assert remembered(daemon, found[0], latest) <= set(found), "the pieces join"


def test_what_was_missed_is_fetched_when_the_daemon_is_back(
    daemon: RunningDaemon, feed_at: Callable[[str], LiveFeed], line_to: Callable[..., CutLine]
) -> None:
    line = line_to()
    feed = feed_at(line.path)
    wait_until(lambda: is_whole(feed))
    line.cut()
    wait_until(lambda: feed.status.link is FeedState.LOST)
    cut_at = sequences(feed)[-1]
    attachment = Attachment(daemon)
    attachment.attach(core_count=1, tag="in between")
    daemon.next_snapshot()
    attachment.close()
    grown(daemon, cut_at + PIECE)
    line.mend()
    wait_until(lambda: feed.status.link is FeedState.LIVE)
    wait_until(lambda: is_whole(feed))
    found = sequences(feed)
    missed = remembered(daemon, cut_at, cut_at + PIECE - 1)
    assert missed
    assert missed <= set(found)
    told = [event for event in feed.timeline.events(len(found) - 1) if "in between" in event.text]
    assert [event.kind for event in told] == ["attached", "ended"]
    at = [moment.sequence for moment in feed.timeline.moments if moment.events]
    assert cut_at < at[0] <= at[-1] < cut_at + PIECE


@pytest.mark.slow
def test_a_daemon_that_begins_anew_leaves_a_gap(start_daemon: StartDaemon, feed_at: Callable[[str], LiveFeed]) -> None:
    first = start_daemon()
    feed = feed_at(first.socket)
    wait_until(lambda: len(sequences(feed)) >= 20)
    first.stop()
    wait_until(lambda: feed.status.link is FeedState.LOST)
    known = len(sequences(feed))
    moments = [moment.at_seconds for moment in feed.timeline.moments]
    longest_pause = max(after - before for before, after in pairwise(moments))
    wait_until(lambda: time.monotonic() - moments[-1] > 2.0 + 10 * longest_pause)
    start_daemon()
    wait_until(lambda: len(sequences(feed)) > known + 20 and not feed.is_loading_past)
    index = len(feed.timeline) - 1
    assert [event.kind for event in feed.timeline.events(index) if event.kind == "restart"] == ["restart"]
    assert feed.timeline.moments[known - 1].at_seconds in [begin for begin, _ in feed.timeline.gaps()]


def test_it_can_be_closed_while_it_begins(daemon: RunningDaemon, feed_at: Callable[[str], LiveFeed]) -> None:
    feed = feed_at(daemon.socket)
    wait_until(lambda: sequences(feed))
    newest = feed.timeline.moments[-1]
    for _ in range(100):
        past = Backfill(daemon.socket, lambda _moments: None)
        wants = threading.Thread(target=past.request, args=(newest, None))
        wants.start()
        while not past.is_loading and wants.is_alive():
            pass
        past.close()
        wants.join()
