"""The moments of a host that can be looked at: the recent past of a live view, or a whole recording."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neurontools.history.events import Event, events_between
from neurontools.history.series import Sample, Series, Trend, sample_of
from neurontools.model import Snapshot
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.recording.host_time import HostTime
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message

LIVE_BYTES = 12 * 2**20
"""How much packed past a live view keeps; about 40 minutes of a trn1.32xlarge at 1 Hz."""

_COMPRESSION_LEVEL = 1
_SAMPLE_BYTES = 1500  # about what a moment costs besides its packed bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """One snapshot, packed, with what is needed of it without unpacking."""

    at_seconds: float
    """Where it is in the timeline: CLOCK_MONOTONIC of the host, which nobody sets; it goes on where a host was started
    again.
    """
    at_unix_seconds: float  # what the clock of the host showed, which may be set back and forward
    sequence: int
    daemon_pid: int
    packed: bytes
    sample: Sample
    events: tuple[Event, ...]  # since the moment before

    def snapshot(self) -> Snapshot:
        """The snapshot, unpacked: some milliseconds."""
        return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(zlib.decompress(self.packed)).snapshot)


class MomentMaker:
    """Makes moments of replies of the API, in order; for one thread."""

    def __init__(self) -> None:
        self._before: neuron_pb2.Snapshot | None = None
        self._time = HostTime()

    def make(self, message: bytes) -> Moment | None:
        """The moment of a reply; None when it isn't newer than the one before, or of no time that can be shown."""
        snapshot = neuron_pb2.GetSnapshotResponse.FromString(message).snapshot
        before = self._before
        for seconds in (snapshot.taken_at_unix_seconds, snapshot.taken_at_seconds):
            if not 0 <= seconds <= LATEST_UNIX_SECONDS:  # NaN fails too
                return None
        at_seconds = self._time.place(snapshot)
        if at_seconds is None:
            return None
        self._before = snapshot
        return Moment(
            at_seconds,
            snapshot.taken_at_unix_seconds,
            snapshot.sequence,
            snapshot.daemon_pid,
            zlib.compress(message, _COMPRESSION_LEVEL),
            sample_of(snapshot, at_seconds),
            tuple(replace(event, at_seconds=at_seconds) for event in events_between(before, snapshot)),
        )


class Timeline:
    """Moments, oldest first, the oldest dropped when they take more than `limit_bytes`. For one thread."""

    def __init__(self, limit_bytes: int | None = LIVE_BYTES) -> None:
        self.moments: list[Moment] = []
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._trend = Trend()
        self._decoded: tuple[Moment, Snapshot] | None = None

    def __len__(self) -> int:
        return len(self.moments)

    def append(self, moment: Moment) -> None:
        """Add a moment, which must be newer than all."""
        self.moments.append(moment)
        self._trend.add(moment.sample)
        self._bytes += len(moment.packed) + _SAMPLE_BYTES
        if self._limit_bytes is None:
            return
        drop = 0
        while self._bytes > self._limit_bytes and drop < len(self.moments) - 1:
            self._bytes -= len(self.moments[drop].packed) + _SAMPLE_BYTES
            drop += 1
        if drop:
            del self.moments[:drop]

    def prepend(self, moments: Sequence[Moment]) -> None:
        """Add those of some moments that are older than all, as far as there is room for them."""
        first_at = self.moments[0].at_seconds if self.moments else float("inf")
        kept = [moment for moment in moments if moment.at_seconds < first_at]
        room = None if self._limit_bytes is None else self._limit_bytes - self._bytes
        first = len(kept)
        while first and (room is None or room > 0):
            first -= 1
            size = len(kept[first].packed) + _SAMPLE_BYTES
            self._bytes += size
            room = None if room is None else room - size
        self.moments[:0] = kept[first:]
        for moment in kept[first:]:
            self._trend.add(moment.sample)

    def index_at(self, at_seconds: float) -> int:
        """The moment at or before this one, by position; the first when all are later."""
        return max(0, bisect_right(self.moments, at_seconds, key=lambda moment: moment.at_seconds) - 1)

    def snapshot(self, index: int) -> Snapshot:
        """The snapshot at a position; asking again for the same is free."""
        moment = self.moments[index]
        if self._decoded is None or self._decoded[0] is not moment:
            self._decoded = (moment, moment.snapshot())
        return self._decoded[1]

    def series(self, index: int, length: int = 3600) -> Series:
        """The numbers of up to `length` moments up to this position."""
        trend = self._trend if index == len(self.moments) - 1 else None
        return Series([moment.sample for moment in self.moments[max(0, index + 1 - length) : index + 1]], trend)

    def events(self, index: int, limit: int = 500) -> tuple[Event, ...]:
        """The latest events up to this position, oldest first."""
        found: list[Event] = []
        for moment in reversed(self.moments[: index + 1]):
            if moment.events:
                found.extend(reversed(moment.events))
                if len(found) >= limit:
                    break
        return tuple(reversed(found[:limit]))

    def next_event(self, index: int, step: int) -> int | None:
        """The position of the next moment with an event, forwards (1) or backwards (-1)."""
        position = index + step
        while 0 <= position < len(self.moments):
            if self.moments[position].events:
                return position
            position += step
        return None
