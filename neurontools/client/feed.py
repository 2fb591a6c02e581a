"""Feeds read the snapshots that a view shows, from a live daemon and its history or from a recording."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from neurontools.client.backfill import Backfill
from neurontools.client.packing import FAST_LEVEL
from neurontools.client.timeline import LIVE_BYTES, HostTimeline, Moment, MomentBuilder
from neurontools.util.errors import UserError

if TYPE_CHECKING:
    from neurontools.client.daemon_client import Client
    from neurontools.client.recording import RecordingWriter
    from neurontools.rpc import neuron_pb2

_RETRY_SECONDS = 0.5
_MISSED_INTERVALS = 2.5  # gaps of more than this many snapshot intervals are filled from the daemon's history


class FeedState(Enum):
    """Whether a feed is connected to its daemon, or how far it has read its recording."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"  # retrying
    LOADING = "loading"  # reading a recording
    COMPLETE = "complete"  # the feed has read the whole recording


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The state of a feed, with a one-line description of the problem if there is one."""

    link: FeedState
    text: str = ""
    since_seconds: float = 0.0  # time.monotonic() of the last state change


class Feed:
    """Base class: reads snapshots in a background thread and converts each to a `Moment`.

    `drain` moves the moments into `timeline`, in the caller's thread. The background thread calls `notify` when there
    are new snapshots or a new status. `close` ends the thread, even if no snapshot arrives.
    """

    is_live = True
    interval_seconds = 1.0  # requested time between two snapshots

    def __init__(self, timeline: HostTimeline) -> None:
        self.timeline = timeline
        self.status = FeedStatus(FeedState.CONNECTING, since_seconds=time.monotonic())
        self._incoming: deque[tuple[Moment, neuron_pb2.Snapshot | None]] = deque()
        self._older: deque[Sequence[Moment]] = deque()
        self._closing = threading.Event()
        self._notify: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self, notify: Callable[[], None]) -> None:
        """Starts the background thread, which calls `notify` for new snapshots and a new status."""
        self._notify = notify
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading and waits at most a second for the background thread. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(1.0)

    @property
    def is_loading_past(self) -> bool:
        """Whether the feed is still loading past snapshots into the timeline."""
        return False

    def drain(self) -> int:
        """Moves the received snapshots into the timeline and returns by how many the timeline grew."""
        timeline = self.timeline
        before = len(timeline)
        while self._incoming:
            moment, message = self._incoming.popleft()
            if not timeline.moments or moment.at_seconds > timeline.moments[-1].at_seconds:
                timeline.append(moment, message)
        while self._older:
            timeline.merge(self._older.popleft())
        return len(timeline) - before

    def _run(self) -> None:
        raise NotImplementedError

    def _set_status(self, link: FeedState, text: str = "") -> None:
        if self.status.link is not link or self.status.text != text:
            since = time.monotonic() if self.status.link is not link else self.status.since_seconds
            self.status = FeedStatus(link, text, since)
            self._notify()


class LiveFeed(Feed):
    """Feed of a live daemon. When the connection is lost, the feed reconnects until the daemon is back.

    In the background, `Backfill` fetches past snapshots, including those taken while the connection was lost.
    """

    def __init__(self, socket_path: str, interval_seconds: float = 1.0) -> None:
        super().__init__(HostTimeline(LIVE_BYTES))
        self.socket_path = socket_path
        self.interval_seconds = interval_seconds
        self.recorder: RecordingWriter | None = None
        self.recording_error = ""
        self._client: Client | None = None
        self._maker = MomentBuilder(FAST_LEVEL)
        self._latest: Moment | None = None
        self._is_past_wanted = False
        self._restart_watch = False
        self._past = Backfill(socket_path, self._add_past, lambda: self.timeline.is_full)

    @property
    def is_loading_past(self) -> bool:
        """Whether `Backfill` is still fetching past snapshots, or has not begun yet."""
        return not self._is_past_wanted or self._past.is_loading

    def begin_with(self, message: bytes) -> None:
        """Adds a snapshot to the timeline before `start`, so that the first screen is not empty."""
        moment = self._maker.make(message)
        if moment is not None:
            self._latest = moment
            self.timeline.append(moment, self._maker.latest)

    def set_interval(self, interval_seconds: float) -> None:
        """Sets the time between two snapshots and reconnects to apply it."""
        self.interval_seconds = interval_seconds
        self._restart_watch = True
        client = self._client
        if client is not None:
            client.close()

    def close(self) -> None:
        """Stops the feed's threads, and closes the recorder if there is one. Idempotent."""
        self._closing.set()
        client = self._client
        if client is not None:
            client.close()
        self._past.close()
        super().close()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def _add_past(self, moments: Sequence[Moment]) -> None:
        if moments:
            self._older.append(moments)
        self._notify()

    def _run(self) -> None:
        from neurontools.client.daemon_client import Client, Closed

        while not self._closing.is_set():
            self._restart_watch = False
            client = self._client = Client(self.socket_path)
            try:
                if self._closing.is_set():
                    break
                for message in client.watch_messages(self.interval_seconds):
                    if self._closing.is_set():
                        break
                    self._add_message(message)
            except Closed:
                pass
            except UserError as error:
                self._set_status(FeedState.LOST, str(error))
            except Exception as error:  # a malformed reply must not crash the view
                self._set_status(FeedState.LOST, f"the daemon's answer can't be read: {error}")
            finally:
                client.close()
            if not self._restart_watch:
                self._closing.wait(_RETRY_SECONDS)

    def _add_message(self, message: bytes) -> None:
        before, moment = self._latest, self._maker.make(message)
        if moment is not None:
            self._latest = moment
            self._incoming.append((moment, self._maker.latest))
            self._record(message)
        if not self._is_past_wanted:
            if self._latest is not None:
                self._past.request(self._latest, None)
            self._is_past_wanted = True
        elif moment is not None and before is not None:
            usual_seconds = max(self.interval_seconds, moment.sample.interval_seconds)
            if moment.at_seconds - before.at_seconds > _MISSED_INTERVALS * usual_seconds:
                self._past.request(moment, before)
        if moment is not None or self.status.link is not FeedState.LIVE:
            self.status = FeedStatus(FeedState.LIVE, since_seconds=time.monotonic())
            self._notify()

    def _record(self, message: bytes) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        try:
            recorder.write(message)
        except (OSError, ValueError) as error:
            if self.recorder is not recorder:  # the user stopped the recording during the write
                return
            self.recorder = None
            self.recording_error = f"the recording has ended: {getattr(error, 'strerror', None) or error}"


class ReplayFeed(Feed):
    """Feed of a recording: reads the whole file once, from start to end."""

    is_live = False

    def __init__(self, path: str) -> None:
        from neurontools.client.recording import RecordingReader

        super().__init__(HostTimeline(None))
        self.path = path
        self._reader = RecordingReader(path)  # raises UserError if the file is not a recording
        self.status = FeedStatus(FeedState.LOADING, since_seconds=time.monotonic())

    @property
    def is_loading_past(self) -> bool:
        """Whether the feed is still reading the recording."""
        return self.status.link is FeedState.LOADING

    @property
    def loaded_ratio(self) -> float | None:
        """The fraction of the recording that is already read, 0 to 1; None if the size of the file is unknown."""
        return 1.0 if self.status.link is FeedState.COMPLETE else self._reader.read_ratio

    def close(self) -> None:
        """Stops the background thread and closes the file. Idempotent."""
        super().close()
        self._reader.close()

    def _run(self) -> None:
        maker = MomentBuilder()
        pending = 0
        try:
            for message in self._reader.messages():
                if self._closing.is_set():
                    return
                moment = maker.make(message)
                if moment is None:
                    continue
                self._incoming.append((moment, None))
                pending += 1
                if pending in (1, 20) or pending % 200 == 0:
                    self._notify()
        except UserError as error:
            self._set_status(FeedState.COMPLETE, str(error))
            return
        self._set_status(FeedState.COMPLETE, self._reader.trouble)
        self._notify()
