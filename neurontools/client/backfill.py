"""Backfill: fetches past snapshots and ended processes that the daemon still has in memory."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neurontools.client.history_blocks import decode_block
from neurontools.client.timeline import Moment, PastMomentBuilder, is_oldest_first
from neurontools.model import EndedProcess
from neurontools.rpc.convert import from_message
from neurontools.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.client.daemon_client import Client
    from neurontools.client.timeline import HostTimeline
    from neurontools.rpc import neuron_pb2


PIECE = 60  # snapshots per request, so few that a busy daemon answers before the timeout
# Pause after each snapshot, as a multiple of the CPU time spent on it: other threads get the GIL meanwhile.
_REST_RATIO = 3.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 8.0
_MOST_STRETCHES = 16


class Backfill:
    """Fetches missing snapshots from the daemon's history in a background thread, newest first.

    The thread calls `deliver` with each batch of snapshots, and with an empty sequence at the end. After a failed
    request, it requests the snapshots that are still missing, until `close`.
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
        self._is_full = is_full  # returns whether the timeline has no room for older snapshots
        self._stretches: list[PastMomentBuilder] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    @property
    def is_loading(self) -> bool:
        """Whether snapshots are left to fetch. Thread-safe."""
        return bool(self._stretches)

    def request(self, newest: Moment, oldest: Moment | None) -> None:
        """Requests all snapshots between `oldest` (None: the oldest that the daemon has) and `newest`. Thread-safe."""
        with self._lock:
            self._stretches.append(PastMomentBuilder(newest, oldest))
            del self._stretches[:-_MOST_STRETCHES]
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="feed-past", daemon=True)
                self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Waits until all requested snapshots are fetched, at most `timeout_seconds`."""
        with self._lock:  # `request` starts the thread under this lock; joining an unstarted thread fails
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def close(self) -> None:
        """Stops fetching and waits at most a second for the thread to end. Idempotent."""
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
            except Exception:  # a malformed reply must not crash the view; the live feed reports it
                is_done = True
            if is_done:
                with self._lock:
                    if stretch in self._stretches:
                        self._stretches.remove(stretch)
        if not self._closing.is_set():
            self._deliver(())

    def _fetch(self, stretch: PastMomentBuilder) -> bool:
        """Fetches up to `PIECE` snapshots of a missing range. Returns whether the whole range is fetched.

        Raises UserError if the call fails; the snapshots received before are delivered.
        """
        from neurontools.client.daemon_client import Client, Closed

        received: list[neuron_pb2.ListHistoryResponse] = []
        failure: UserError | None = None
        client = self._client = Client(self._socket_path)
        with client:
            if self._closing.is_set():
                return True
            try:
                received.extend(client.past(stretch.before_sequence, PIECE))
            except UserError as error:
                failure = error
            except Closed:
                return True
        if is_oldest_first([reply.packed for reply in received if reply.packed]):
            # An older daemon replies oldest first. Its incomplete reply is dropped, because it would leave a gap.
            received = received[::-1] if failure is None else []
        moments = self._make_moments(stretch, received)
        if failure is not None:
            self._deliver(moments)
            raise failure
        count = sum(len(reply.block.moments) or 1 for reply in received)
        is_last = stretch.is_complete or not moments or count < PIECE or self._is_full()
        if is_last and not stretch.is_complete:
            moments.extend(stretch.finish())
        self._deliver(moments)
        return is_last

    def _make_moments(
        self, stretch: PastMomentBuilder, received: Sequence[neuron_pb2.ListHistoryResponse]
    ) -> list[Moment]:
        found: list[Moment] = []
        for reply in received:
            began_seconds = time.thread_time()
            if reply.packed:
                found.extend(stretch.make(reply.packed))
            else:
                found.extend(stretch.add(reversed(decode_block(reply.block, stretch.begun_seconds))))
            if stretch.is_complete or self._closing.wait(self._rest_ratio * (time.thread_time() - began_seconds)):
                break
        return found


def backfill_all(socket_path: str, newest: Moment, within_seconds: float) -> tuple[list[Moment], bool]:
    """Returns the snapshots before `newest` that can be fetched within `within_seconds`, and whether these are all.

    The snapshots are in any order.
    """
    found: list[Moment] = []
    past = Backfill(socket_path, found.extend, rest_ratio=0.0)
    past.request(newest, None)
    past.join(within_seconds)
    is_whole = not past.is_loading
    past.close()
    return found, is_whole


MOST_ENDED = 4000
# A snapshot lists all processes that ended in the last minute, so one snapshot every 25 s is enough.
_STEP_SECONDS = 25.0


class EndedProcessLog:
    """Collects ended processes without duplicates. Not thread-safe."""

    def __init__(self) -> None:
        self._ended: dict[tuple[int, float, float], EndedProcess] = {}
        self._read: dict[int, float] = {}  # time of the last snapshot that was read, for each time step

    def add(self, processes: Iterable[EndedProcess]) -> None:
        """Adds ended processes. A process in the log is replaced only when it has lived on until now."""
        for process in processes:
            before = self._ended.setdefault(process.identity, process)
            if before.lives_on:
                self._ended[process.identity] = process
        for key in list(self._ended)[: max(0, len(self._ended) - MOST_ENDED)]:
            del self._ended[key]

    def read(self, timeline: HostTimeline) -> None:
        """Adds the ended processes of a timeline. Skips snapshots that earlier calls read."""
        moments = timeline.moments
        position = 0
        while position < len(moments):
            step = int(moments[position].at_seconds // _STEP_SECONDS)
            end = bisect_right(moments, (step + 1) * _STEP_SECONDS, position, key=lambda moment: moment.at_seconds)
            last = moments[max(position, end - 1)]
            if self._read.get(step) != last.at_seconds:
                self._read[step] = last.at_seconds
                self.add(from_message(EndedProcess, ended) for ended in last.message().ended)
            position = max(position + 1, end)

    def until(self, unix_seconds: float) -> tuple[EndedProcess, ...]:
        """Returns the processes that ended at or before this time."""
        return tuple(process for process in self._ended.values() if process.ended_at_unix_seconds <= unix_seconds)


class EndedProcessFetch:
    """Requests the ended processes from a daemon once, in a background thread. `take_reply` returns them."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._reply: tuple[EndedProcess, ...] = ()
        self._thread = threading.Thread(target=self._run, name="ended", daemon=True)
        self._thread.start()

    def wait(self) -> tuple[EndedProcess, ...]:
        """Waits for the daemon's reply and returns its ended processes."""
        self._thread.join()
        return self.take_reply()

    def take_reply(self) -> tuple[EndedProcess, ...]:
        """Returns the ended processes once. Returns () before the reply has arrived, and in later calls."""
        found, self._reply = self._reply, ()
        return found

    def _run(self) -> None:
        from neurontools.client.daemon_client import Client

        try:
            with Client(self._socket_path) as client:
                self._reply = client.ended().processes
        except (UserError, ValueError):  # the daemon is unreachable, or too old for ListEnded
            return
