"""What a live view consumes: a daemon with its recent past, or a recording; the same to the view."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from neurontools.client.history.moment import Moment, MomentMaker
from neurontools.client.history.past import Past
from neurontools.client.history.timeline import LIVE_BYTES, Timeline
from neurontools.util.errors import UserError

if TYPE_CHECKING:
    from neurontools.client.daemon_client import Client
    from neurontools.client.recording.writer import RecordingWriter
    from neurontools.rpc import neuron_pb2

_RETRY_SECONDS = 0.5
_MISSED_INTERVALS = 2.5  # after a longer pause the daemon is asked for what was missed


class Link(Enum):
    """How a feed stands to its source."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"  # trying again
    LOADING = "loading"  # of a recording
    COMPLETE = "complete"  # a recording, to its end


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The state of a feed; `text` says what is wrong, in a line."""

    link: Link
    text: str = ""
    since_seconds: float = 0.0  # time.monotonic() of the change


class Feed:
    """Moments as they come, read in a thread of its own.

    `drain` moves what has come into `timeline`, in the caller's thread; `notify` is called, from the feed's thread,
    when there is something to drain or the status has changed. `close` ends the thread, also when the source is silent.
    """

    is_live = True
    interval_seconds = 1.0  # between two moments

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.status = FeedStatus(Link.CONNECTING, since_seconds=time.monotonic())
        self._incoming: deque[tuple[Moment, neuron_pb2.Snapshot | None]] = deque()
        self._older: deque[Sequence[Moment]] = deque()
        self._closing = threading.Event()
        self._notify: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self, notify: Callable[[], None]) -> None:
        """Begin to read."""
        self._notify = notify
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading; may be called again. Waits a moment for the thread, and never longer."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(1.0)

    @property
    def is_loading_past(self) -> bool:
        """Whether more of the past is still to come than is in the timeline."""
        return False

    def drain(self) -> int:
        """Take over what has come; how many moments that were. What is known already is passed over."""
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

    def _set_status(self, link: Link, text: str = "") -> None:
        if self.status.link is not link or self.status.text != text:
            since = time.monotonic() if self.status.link is not link else self.status.since_seconds
            self.status = FeedStatus(link, text, since)
            self._notify()


class LiveFeed(Feed):
    """The snapshots of a daemon; one that went away is looked for until it is back.

    It watches first. What the daemon remembers of before, and of the time in which it could not be watched, comes
    beside that and as it can (`Past`).
    """

    def __init__(self, socket_path: str, interval_seconds: float = 1.0, *, limit_bytes: int = LIVE_BYTES) -> None:
        super().__init__(Timeline(limit_bytes))
        self.socket_path = socket_path
        self.interval_seconds = interval_seconds
        self.recorder: RecordingWriter | None = None
        self.recording_error = ""
        self._client: Client | None = None
        self._maker = MomentMaker()
        self._latest: Moment | None = None
        self._is_past_wanted = False
        self._restart_watch = False
        self._past = Past(socket_path, self._take_past, lambda: self.timeline.is_full)

    @property
    def is_loading_past(self) -> bool:
        """As in Feed."""
        return not self._is_past_wanted or self._past.is_loading

    def begin_with(self, message: bytes) -> None:
        """Take a snapshot that was asked for before the feed is started, so that there is something to show at once."""
        moment = self._maker.make(message)
        if moment is not None:
            self._latest = moment
            self.timeline.append(moment, self._maker.latest)

    def set_interval(self, interval_seconds: float) -> None:
        """Change the time between two moments, from the next one on."""
        self.interval_seconds = interval_seconds
        self._restart_watch = True
        client = self._client
        if client is not None:
            client.close()

    def close(self) -> None:
        """As in Feed; a recording is ended."""
        self._closing.set()
        client = self._client
        if client is not None:
            client.close()
        self._past.close()
        super().close()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def _take_past(self, moments: Sequence[Moment]) -> None:
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
                    self._watched(message)
            except Closed:
                pass
            except UserError as error:
                self._set_status(Link.LOST, str(error))
            except Exception as error:  # whatever a daemon sends, the view stays
                self._set_status(Link.LOST, f"the daemon's answer can't be read: {error}")
            finally:
                client.close()
            if not self._restart_watch:
                self._closing.wait(_RETRY_SECONDS)

    def _watched(self, message: bytes) -> None:
        before, moment = self._latest, self._maker.make(message)
        if moment is not None:
            self._latest = moment
            self._incoming.append((moment, self._maker.latest))
            self._record(message)
        if not self._is_past_wanted:
            if self._latest is not None:
                self._past.want(self._latest, None)
            self._is_past_wanted = True
        elif moment is not None and before is not None and self._has_missed(before, moment):
            self._past.want(moment, before)
        if moment is not None or self.status.link is not Link.LIVE:
            self.status = FeedStatus(Link.LIVE, since_seconds=time.monotonic())
            self._notify()

    def _has_missed(self, before: Moment, moment: Moment) -> bool:
        usual_seconds = max(self.interval_seconds, moment.sample.interval_seconds)
        return moment.at_seconds - before.at_seconds > _MISSED_INTERVALS * usual_seconds

    def _record(self, message: bytes) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        try:
            recorder.write(message)
        except (OSError, ValueError) as error:
            if self.recorder is not recorder:  # who watches has ended it meanwhile
                return
            self.recorder = None
            self.recording_error = f"the recording has ended: {getattr(error, 'strerror', None) or error}"


class ReplayFeed(Feed):
    """A recording, read from its beginning to its end."""

    is_live = False

    def __init__(self, path: str) -> None:
        from neurontools.client.recording.reader import RecordingReader

        super().__init__(Timeline(None))
        self.path = path
        self._reader = RecordingReader(path)  # UserError for what is no recording
        self.status = FeedStatus(Link.LOADING, since_seconds=time.monotonic())

    @property
    def is_loading_past(self) -> bool:
        """As in Feed."""
        return self.status.link is Link.LOADING

    @property
    def loaded_ratio(self) -> float | None:
        """How much of the recording has been read, 0 to 1; None where that can't be known."""
        return 1.0 if self.status.link is Link.COMPLETE else self._reader.read_ratio

    def close(self) -> None:
        """As in Feed."""
        super().close()
        self._reader.close()

    def _run(self) -> None:
        maker = MomentMaker()
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
            self._set_status(Link.COMPLETE, str(error))
            return
        self._set_status(Link.COMPLETE, self._reader.trouble)
        self._notify()
