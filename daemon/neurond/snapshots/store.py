"""The latest snapshot and the recent past, serialised once for all readers."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from neurond.sources.source import DeviceSource
from neurontools.model import Health, Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message

_COMPRESSION_LEVEL = 1  # history is kept packed: a snapshot shrinks to about a tenth in well under a millisecond


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot and, in `message`, its bytes: those of any response whose field 1 is the snapshot."""

    snapshot: Snapshot
    message: bytes


@dataclass(frozen=True, slots=True)
class _Past:
    sequence: int
    taken_at_seconds: float
    packed: bytes


class HealthMessageCache:
    """The message of the latest verdicts, which mostly are those of the tick before."""

    def __init__(self) -> None:
        self._latest: tuple[Health, neuron_pb2.Health] | None = None

    def message(self, health: Health) -> neuron_pb2.Health:
        """The message of these verdicts; not to be changed."""
        if self._latest is None or self._latest[0] is not health:
            self._latest = health, cast(neuron_pb2.Health, to_message(health))
        return self._latest[1]


class SnapshotStore:
    """Keeps the latest entry for everybody and a bounded past. Belongs to the event loop's thread.

    The past is bounded both by time and by bytes; the oldest goes first.
    """

    def __init__(self, history_seconds: float, history_bytes: int) -> None:
        self._history_seconds = history_seconds
        self._history_bytes = history_bytes
        self._packed_bytes = 0
        self._past: deque[_Past] = deque()
        self._latest: StoredSnapshot | None = None
        self._verdicts = HealthMessageCache()
        self._changed = asyncio.Event()

    @property
    def latest(self) -> StoredSnapshot:
        """The latest entry; RuntimeError before the first `put`."""
        if self._latest is None:
            raise RuntimeError("no snapshot has been taken yet")
        return self._latest

    def put(self, snapshot: Snapshot, *, remember: bool = True) -> StoredSnapshot:
        """Makes a snapshot the latest one, and part of the past if it is to be remembered, and wakes its readers."""
        reply = neuron_pb2.GetSnapshotResponse(snapshot=to_message(replace(snapshot, health=None)))
        if snapshot.health is not None:
            reply.snapshot.health.CopyFrom(self._verdicts.message(snapshot.health))
        message = reply.SerializeToString()
        entry = self._latest = StoredSnapshot(snapshot, message)
        if remember and self._history_seconds > 0:
            self._remember(snapshot, message)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return entry

    async def after(self, sequence: int) -> StoredSnapshot:
        """The latest entry as soon as its sequence is above this one; those between are skipped."""
        while self._latest is None or self._latest.snapshot.sequence <= sequence:
            await self._changed.wait()
        return self._latest

    def past(self, age_seconds: float) -> bytes:
        """The message of the latest remembered snapshot that is at least so old; else that of the oldest there is."""
        until = self.latest.snapshot.taken_at_seconds - age_seconds
        for past in reversed(self._past):
            if past.taken_at_seconds <= until:
                return zlib.decompress(past.packed)
        return zlib.decompress(self._past[0].packed) if self._past else self.latest.message

    def history(self, duration_seconds: float, after_sequence: int) -> Iterator[bytes]:
        """The messages of the past, oldest first: those of the last `duration_seconds` (0: all), after a sequence."""
        return map(zlib.decompress, self.packed_history(duration_seconds, after_sequence))

    def packed_history(
        self,
        duration_seconds: float,
        after_sequence: int,
        *,
        before_sequence: int = 0,
        most: int = 0,
        newest_first: bool = False,
    ) -> Iterator[bytes]:
        """As `history`, compressed; of those before a sequence (0: all) the latest `most` (0: all), in either order."""
        since = self.latest.snapshot.taken_at_seconds - duration_seconds if duration_seconds > 0 else 0.0
        found: list[bytes] = []
        for past in reversed(self._past):
            if past.sequence <= after_sequence or past.taken_at_seconds < since or (most and len(found) == most):
                break
            if not before_sequence or past.sequence < before_sequence:
                found.append(past.packed)
        return iter(found) if newest_first else reversed(found)

    def _remember(self, snapshot: Snapshot, message: bytes) -> None:
        packed = zlib.compress(message, _COMPRESSION_LEVEL)
        self._past.append(_Past(snapshot.sequence, snapshot.taken_at_seconds, packed))
        self._packed_bytes += len(packed)
        oldest = snapshot.taken_at_seconds - self._history_seconds
        while self._past and (self._past[0].taken_at_seconds < oldest or self._packed_bytes > self._history_bytes):
            self._packed_bytes -= len(self._past.popleft().packed)


_SWITCH_SECONDS = 0.0005

_log = logging.getLogger(__name__)


class SourceRefresher:
    """Refreshes a source in a thread that ends with the process; a read of hardware may hang for ever."""

    def __init__(self, source: DeviceSource) -> None:
        self._source = source
        self._asked: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = queue.SimpleQueue()
        self._pending: asyncio.Future[None] | None = None
        self._pending_since = 0.0
        self._failure = ""
        if source.is_slow:
            # How long the event loop may have to wait for the interpreter while a reading is put together.
            sys.setswitchinterval(_SWITCH_SECONDS)
            threading.Thread(target=self._work, name="source", daemon=True).start()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the devices' state is old, if it is."""
        if self._pending is not None and not self._pending.done():
            seconds = time.monotonic() - self._pending_since
            return (f"the driver has not answered for {seconds:.0f} s: what is shown of the devices is that old",)
        return (self._failure,) if self._failure else ()

    async def refresh(self, patience_seconds: float) -> None:
        """Has the source read its hardware; returns when it has, or when patience ends and it goes on reading."""
        if not self._source.is_slow:
            return
        if self._pending is None or self._pending.done():
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            self._pending_since = time.monotonic()
            self._asked.put((loop, self._pending))
        await asyncio.wait({self._pending}, timeout=patience_seconds)

    def _work(self) -> None:
        while True:
            loop, future = self._asked.get()
            try:
                self._source.refresh()
                self._failure = ""
            except Exception as error:
                # A fault in one reading must not end all later ones.
                self._failure = f"the devices could not be read: {error}"
                _log.exception("the devices could not be read")
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # the loop is closed: the daemon has ended
                return


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_FIRST_SHARE, _LAST_SHARE = 0.3, 0.7  # of an interval: where in it reports are wanted, far from the ticks at either end
_PLACES = 16
_LATE_SHARE = 0.5  # a tick that is late by less is taken at once


class TickSchedule:
    """Moments of CLOCK_MONOTONIC an interval apart, the same for as long as the daemon runs."""

    def __init__(self, interval_seconds: float, began_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self.began_seconds = began_seconds

    def after(self, tick_seconds: float, now_seconds: float) -> float:
        """The tick that follows one; those that were missed are left out."""
        late_share = (now_seconds - tick_seconds) / self.interval_seconds - 1.0
        return tick_seconds + self.interval_seconds * (1 + max(0, math.ceil(late_share - _LATE_SHARE)))

    def report_at(self, pid: int) -> float:
        """A moment at which a process should report; the others are intervals before and after it.

        Between two ticks there is one report then, no more and no less. Not all processes report at once.
        """
        place = _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * (pid % _PLACES) / (_PLACES - 1)
        return self.began_seconds + self.interval_seconds * place
