"""Time cursor: selects the moment of a feed that is shown; live, paused or replayed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from neurontools.client.feed import Feed, FeedState, ReplayFeed
from neurontools.views.drawing.render_context import ShownMoment

_SILENT_INTERVALS = 3.5  # a daemon that sent no data for this number of intervals counts as silent
_SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_EVENT_TIMES = 400


class TimeCursor:
    """Position of the shown moment in a feed. `at` is its time in seconds; None follows the latest moment."""

    def __init__(self, feed: Feed, now: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._now = now
        self._speed = 2
        self._advanced_at = now()
        self.at: float | None = None
        self.is_playing = not feed.is_live
        self.interval_seconds = feed.interval_seconds
        self._has_moved = False
        self._seeks_end = False  # whether to stay at the end of a recording while it is being loaded

    @property
    def index(self) -> int | None:
        """The index of the shown moment in the timeline; None if the timeline is empty."""
        timeline = self._feed.timeline
        if not timeline.moments:
            return None
        return len(timeline) - 1 if self.at is None else timeline.index_at(self.at)

    @property
    def speed(self) -> float:
        """The replay speed; 1.0 is real time."""
        return _SPEEDS[self._speed]

    def advance(self) -> bool:
        """Advances a replay by the elapsed time. Returns whether the screen must be redrawn."""
        now = self._now()
        elapsed, self._advanced_at = now - self._advanced_at, now
        moments = self._feed.timeline.moments
        if self._feed.is_live or not moments:
            return False
        if self.at is None:
            self.at = moments[0].at_seconds
            return True
        before = self.index
        if self._seeks_end:
            self._to_end()
            return self.index != before or not self._seeks_end
        if not self.is_playing:
            return False
        self.at = min(self.at + elapsed * self.speed, moments[-1].at_seconds)
        if self.at >= moments[-1].at_seconds and self._feed.status.link is FeedState.COMPLETE:
            self.is_playing = False
        return self.index != before or not self.is_playing

    def toggle_pause(self) -> None:
        """Pauses the live view or the replay, or resumes a paused one."""
        self._seeks_end = False
        if not self._feed.is_live:
            self.is_playing = not self.is_playing
        elif self.at is None:
            index = self.index
            self.at = None if index is None else self._feed.timeline.moments[index].at_seconds
            self._has_moved = False
        else:
            self.at = None

    def step(self, count: int) -> None:
        """Moves by `count` moments of the timeline; a negative count moves back."""
        index = self.index
        if index is not None:
            self._move_to(index + count)

    def leap(self, seconds: float) -> None:
        """Moves by `seconds` on the timeline; a negative value moves back."""
        index, timeline = self.index, self._feed.timeline
        if index is not None:
            self._move_to(timeline.index_at(timeline.moments[index].at_seconds + seconds))

    def seek(self, share: float) -> None:
        """Moves to a position on the timeline: 0 is its start, 1 its end."""
        moments = self._feed.timeline.moments
        if moments:
            first, last = moments[0].at_seconds, moments[-1].at_seconds
            self._move_to(self._feed.timeline.index_at(first + share * (last - first)))

    def to_event(self, step: int) -> bool:
        """Moves to the next event if `step` is 1, to the previous if -1. Returns False if there is no such event."""
        index = self.index
        found = None if index is None else self._feed.timeline.next_event(index, step)
        if found is not None:
            self._move_to(found)
        return found is not None

    def go_live(self) -> None:
        """Follows the latest moment of a live feed, or goes to the end of a recording."""
        if self._feed.is_live:
            self.at = None
        elif self._feed.timeline.moments:
            self._to_end()

    def _to_end(self) -> None:
        self.at = self._feed.timeline.moments[-1].at_seconds
        self.is_playing = False
        self._seeks_end = self._feed.status.link is not FeedState.COMPLETE

    def loading_text(self) -> str:
        """Returns the loading progress of a recording as text; "" once it is loaded."""
        feed = self._feed
        if not isinstance(feed, ReplayFeed) or feed.status.link is FeedState.COMPLETE:
            return ""
        ratio = feed.loaded_ratio
        return "loading" if ratio is None else f"loading, {int(ratio * 100)} % so far"

    def change_speed(self, step: int) -> float:
        """Moves `step` entries along the list of replay speeds; returns the new speed."""
        self._speed = min(len(_SPEEDS) - 1, max(0, self._speed + step))
        return self.speed

    def _move_to(self, index: int) -> None:
        moments = self._feed.timeline.moments
        index = min(max(0, index), len(moments) - 1)
        self.at = moments[index].at_seconds
        self.is_playing = self._seeks_end = False
        self._has_moved = True

    def clock(self, recording: str) -> ShownMoment:
        """Returns the shown moment and the state of the feed, for the title and the scrubber."""
        moments = self._feed.timeline.moments
        shown = ShownMoment(*self._badge(), recording=recording, is_loading_past=self._feed.is_loading_past)
        if not moments:
            return shown
        is_past = self.at is not None
        index = self.index or 0
        return replace(
            shown,
            is_past=is_past,
            first=moments[0].at_seconds,
            last=moments[-1].at_seconds,
            shown=moments[index].at_seconds,
            shown_at_unix_seconds=moments[index].at_unix_seconds,
            event_times=self._feed.timeline.event_times(_EVENT_TIMES) if is_past else (),
            first_at_unix_seconds=moments[0].at_unix_seconds,
        )

    def is_restless(self) -> bool:
        """Returns whether the screen shows the age of stale data, which grows, so that it must be redrawn."""
        if not self._feed.is_live:
            return False
        age = self._now() - self._feed.status.since_seconds
        return self._feed.status.link is not FeedState.LIVE or age > _SILENT_INTERVALS * self.interval_seconds

    def _badge(self) -> tuple[str, str, str]:
        """Returns the state of the feed for the title, its style, and the problem of the feed."""
        status = self._feed.status
        if not self._feed.is_live:
            text = f"REPLAY {self.speed:g}x" if self.is_playing else "REPLAY paused"
            if loading := self.loading_text():
                text = f"{text}, {loading.removesuffix(' so far')}"
            if status.text and self._feed.timeline.moments:
                return f"{text}, not whole", "title_bad", ""
            return text, "title_warn", ""
        age = self._now() - status.since_seconds
        moments = self._feed.timeline.moments
        if status.link is FeedState.LOST:
            data_age = max(0.0, self._now() - moments[-1].at_seconds) if moments else 0.0
            return f"LOST, data {_seconds(data_age)} old", "title_bad", f"trying again: {status.text}"
        if status.link is FeedState.LIVE and moments and age > _SILENT_INTERVALS * self.interval_seconds:
            text = "the daemon has gone silent; the numbers are old"
            return f"SILENT, data {_seconds(age)} old", "title_bad", text
        if self.at is None:
            live = "STARTING" if status.link is FeedState.CONNECTING else "LIVE"
            return live if moments else "WAITING", "title_dim", ""
        return ("PAST" if self._has_moved else "PAUSED"), "title_warn", ""


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
