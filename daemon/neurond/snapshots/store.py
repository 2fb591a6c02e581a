"""Stores the latest snapshot and the recent history, refreshes slow device sources, and schedules ticks."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from neurond.sources import DeviceSource
from neurontools.client.packing import FAST_LEVEL
from neurontools.client.timeline import Moment, MomentBuilder
from neurontools.model import Health, Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot and its serialized `message`, which fits every response type that has a snapshot in field 1."""

    snapshot: Snapshot
    message: bytes


class HealthMessageCache:
    """Caches the protobuf message of the findings, which seldom change between ticks."""

    def __init__(self) -> None:
        self._latest: tuple[Health, neuron_pb2.Health] | None = None

    def message(self, health: Health) -> neuron_pb2.Health:
        """Returns the protobuf message of these findings. Callers must not modify it."""
        if self._latest is None or self._latest[0] is not health:
            self._latest = health, cast(neuron_pb2.Health, to_message(health))
        return self._latest[1]


class SnapshotStore:
    """Stores the latest snapshot and a history limited by time and bytes. For the event loop's thread only."""

    def __init__(self, history_seconds: float, history_bytes: int) -> None:
        self._history_seconds = history_seconds
        self._history_bytes = history_bytes
        self._builder = MomentBuilder(FAST_LEVEL)
        self._past: deque[Moment] = deque()
        self._past_bytes = 0
        self._latest: StoredSnapshot | None = None
        self._verdicts = HealthMessageCache()
        self._changed = asyncio.Event()

    @property
    def latest(self) -> StoredSnapshot:
        """The latest snapshot. Raises RuntimeError before the first `put`."""
        if self._latest is None:
            raise RuntimeError("no snapshot has been taken yet")
        return self._latest

    def put(self, snapshot: Snapshot, *, remember: bool = True) -> StoredSnapshot:
        """Stores the latest snapshot and wakes waiting readers. `remember` adds it to the history."""
        reply = neuron_pb2.GetSnapshotResponse(snapshot=to_message(replace(snapshot, health=None)))
        if snapshot.health is not None:
            reply.snapshot.health.CopyFrom(self._verdicts.message(snapshot.health))
        message = reply.SerializeToString()
        entry = self._latest = StoredSnapshot(snapshot, message)
        if remember and self._history_seconds > 0:
            self._remember(message, reply.snapshot)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return entry

    async def after(self, sequence: int) -> StoredSnapshot:
        """Waits for a snapshot with a higher sequence number, and returns the latest snapshot."""
        while self._latest is None or self._latest.snapshot.sequence <= sequence:
            await self._changed.wait()
        return self._latest

    def past(self, age_seconds: float) -> bytes:
        """Returns the latest serialized snapshot of at least this age; if there is none, the oldest of the history."""
        until = self.latest.snapshot.taken_at_seconds - age_seconds
        for moment in reversed(self._past):
            if moment.at_seconds <= until:
                return moment.packed.message()
        return self._past[0].packed.message() if self._past else self.latest.message

    def history(
        self,
        duration_seconds: float = 0.0,
        after_sequence: int = 0,
        *,
        before_sequence: int = 0,
        most: int = 0,
    ) -> list[Moment]:
        """Returns the moments of the last `duration_seconds`, newest first.

        Their sequence numbers lie between `after_sequence` and `before_sequence`. Returns at most the latest `most` of
        them. For all four arguments, 0 means no limit.
        """
        since = self.latest.snapshot.taken_at_seconds - duration_seconds if duration_seconds > 0 else 0.0
        found: list[Moment] = []
        for moment in reversed(self._past):
            if moment.sequence <= after_sequence or moment.at_seconds < since or (most and len(found) == most):
                break
            if not before_sequence or moment.sequence < before_sequence:
                found.append(moment)
        return found

    def _remember(self, message: bytes, snapshot: neuron_pb2.Snapshot) -> None:
        moment = self._builder.make(message, snapshot)
        if moment is None:
            return
        self._past.append(moment)
        self._past_bytes += moment.size_bytes
        oldest = moment.at_seconds - self._history_seconds
        while self._past and (self._past[0].at_seconds < oldest or self._past_bytes > self._history_bytes):
            self._past_bytes -= self._past.popleft().size_bytes


_SWITCH_SECONDS = 0.0005

_log = logging.getLogger(__name__)


class SourceRefresher:
    """Refreshes a slow source in a daemon thread, because a read of hardware may hang forever."""

    def __init__(self, source: DeviceSource, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._monotonic = monotonic
        self._requests: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = queue.SimpleQueue()
        self._pending: asyncio.Future[None] | None = None
        self._pending_since = 0.0
        self._failure = ""
        self._answered_at_seconds: float | None = None
        if source.is_slow:
            # A short switch interval limits how long the event loop waits for the GIL while devices are read.
            sys.setswitchinterval(_SWITCH_SECONDS)
            threading.Thread(target=self._work, name="source", daemon=True).start()

    @property
    def answered_at_seconds(self) -> float | None:
        """When the devices were last read (CLOCK_MONOTONIC); None if they never were."""
        return self._answered_at_seconds if self._source.is_slow else self._monotonic()

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning if the state of the devices is old or could not be read."""
        if self._is_waiting:
            seconds = self._monotonic() - self._pending_since
            return (f"the driver has not answered for {seconds:.0f} s: the state of the devices is that old",)
        return (self._failure,) if self._failure else ()

    @property
    def cause(self) -> str:
        """Why the state of the devices is old, without times; "" if it is not."""
        return "the driver does not answer" if self._is_waiting else self._failure

    @property
    def _is_waiting(self) -> bool:
        return self._pending is not None and not self._pending.done()

    async def refresh(self, patience_seconds: float) -> None:
        """Starts a refresh of the source unless one is running. Waits up to `patience_seconds` for its end."""
        if not self._source.is_slow:
            return
        if self._pending is None or self._pending.done():
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            self._pending_since = self._monotonic()
            self._requests.put((loop, self._pending))
        await asyncio.wait({self._pending}, timeout=patience_seconds)

    def _work(self) -> None:
        while True:
            loop, future = self._requests.get()
            try:
                self._source.refresh()
                self._failure = ""
                self._answered_at_seconds = self._monotonic()
            except Exception as error:
                # An error in one refresh must not end the thread that refreshes the source.
                self._failure = f"the devices could not be read: {error}"
                _log.exception("the devices could not be read")
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # the loop is closed because the daemon has ended
                return


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_FIRST_SHARE, _LAST_SHARE = 0.3, 0.7  # processes report in this part of the interval between two ticks
_PLACES = 16
_LATE_SHARE = 0.5  # a tick is skipped only if it is late by more than this share of the interval between ticks


class TickSchedule:
    """Schedules ticks at a fixed interval of CLOCK_MONOTONIC."""

    def __init__(self, interval_seconds: float, began_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self.began_seconds = began_seconds

    def after(self, tick_seconds: float, now_seconds: float) -> float:
        """Returns the time of the tick after `tick_seconds`. Skips ticks that are already over."""
        late_share = (now_seconds - tick_seconds) / self.interval_seconds - 1.0
        return tick_seconds + self.interval_seconds * (1 + max(0, math.ceil(late_share - _LATE_SHARE)))

    def report_at(self, pid: int) -> float:
        """Returns the start of a process's report schedule. From then on, the process reports once per interval.

        Thus each process reports once between two ticks, and different processes report at different times.
        """
        place = _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * (pid % _PLACES) / (_PLACES - 1)
        return self.began_seconds + self.interval_seconds * place
