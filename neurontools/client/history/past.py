"""What a daemon remembers of the time before a view watched, or in which it could not; fetched beside the watching."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neurontools.client.history.moment import Moment, PastMaker, is_older_first
from neurontools.util.errors import UserError

if TYPE_CHECKING:
    from neurontools.client.daemon_client import Client

PIECE = 60  # moments asked for at once: a busy host answers that in time
_REST_RATIO = 3.0  # of the work on a moment, after it, so that keys and drawing don't wait for the interpreter
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 8.0
_MOST_STRETCHES = 16


class Past:
    """Fetches stretches of the past in pieces, the newest first, in a thread of its own while there are any.

    `deliver` gets moments, in that thread, and is called once more with none when there is nothing left to fetch. What
    fails is tried again, from where it had come to, until `close`.
    """

    def __init__(
        self,
        socket_path: str,
        deliver: Callable[[Sequence[Moment]], object],
        is_full: Callable[[], bool] = lambda: False,
        *,
        rest_ratio: float = _REST_RATIO,
    ) -> None:
        self._socket_path = socket_path
        self._rest_ratio = rest_ratio
        self._deliver = deliver
        self._is_full = is_full  # whether nothing older is wanted
        self._stretches: list[PastMaker] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    @property
    def is_loading(self) -> bool:
        """Whether there is something left to fetch. From any thread."""
        return bool(self._stretches)

    def want(self, newest: Moment, oldest: Moment | None) -> None:
        """Fetch what is between two moments, or all that is before `newest`. From any thread."""
        with self._lock:
            self._stretches.append(PastMaker(newest, oldest))
            del self._stretches[:-_MOST_STRETCHES]
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="feed-past", daemon=True)
                self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait until all is fetched, but no longer than this."""
        with self._lock:  # under it a thread that is known has been started
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def close(self) -> None:
        """Fetch no more; may be called again. Waits a moment for the thread, and never longer."""
        self._closing.set()
        client = self._client
        if client is not None:
            client.close()
        self.join(1.0)

    def _run(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        while not self._closing.is_set():
            with self._lock:
                if not self._stretches:
                    self._thread = None
                    break
                stretch = self._stretches[-1]
            try:
                is_done = self._fetch(stretch)
                retry_seconds = _FIRST_RETRY_SECONDS
            except UserError:
                is_done = False
                self._closing.wait(retry_seconds)
                retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)
            except Exception:  # whatever a daemon sends, the view stays: what it watches tells what is wrong
                is_done = True
            if is_done:
                with self._lock:
                    if stretch in self._stretches:
                        self._stretches.remove(stretch)
        if not self._closing.is_set():
            self._deliver(())

    def _fetch(self, stretch: PastMaker) -> bool:
        """Fetch a piece of a stretch; whether that was the last one. UserError when it did not come whole."""
        from neurontools.client.daemon_client import Client, Closed

        received: list[bytes] = []
        failure: UserError | None = None
        client = self._client = Client(self._socket_path)
        with client:
            if self._closing.is_set():
                return True
            try:
                received.extend(client.packed_past(stretch.before_sequence, PIECE))
            except UserError as error:
                failure = error
            except Closed:
                return True
        if is_older_first(received):
            # An older daemon answers oldest first: of a part of that nothing joins what is known.
            received = received[::-1] if failure is None else []
        made = self._made(stretch, received)
        if failure is not None:
            self._deliver(made)
            raise failure
        is_last = stretch.is_complete or not made or len(received) != PIECE or self._is_full()
        if is_last and not stretch.is_complete:
            made.extend(stretch.finish())
        self._deliver(made)
        return is_last

    def _made(self, stretch: PastMaker, received: Sequence[bytes]) -> list[Moment]:
        found: list[Moment] = []
        for packed in received:
            began_seconds = time.thread_time()
            found.extend(stretch.make(packed))
            if stretch.is_complete or self._closing.wait(self._rest_ratio * (time.thread_time() - began_seconds)):
                break
        return found


def whole_past(socket_path: str, newest: Moment, within_seconds: float) -> list[Moment]:
    """What a daemon remembers of before a moment, in any order; the latest part of it when the time is over."""
    found: list[Moment] = []
    past = Past(socket_path, found.extend, rest_ratio=0.0)
    past.want(newest, None)
    past.join(within_seconds)
    past.close()
    return found
