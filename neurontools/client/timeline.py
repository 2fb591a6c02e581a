"""The timeline of a host: packed snapshots with their samples and events."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from neurontools.client.events import HostEvent, events_between
from neurontools.client.samples import HostSample, Samples, sample_snapshot
from neurontools.client.series import Series
from neurontools.model import Snapshot
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import MAX_REPLY_BYTES
from neurontools.rpc.convert import snapshot_on_demand

LIVE_BYTES = 5472 * 2**10
"""Memory limit of a live view: 20 minutes of a trn1.32xlarge at 1 Hz, twice the default of the daemon."""

_at = attrgetter("at_seconds")


class HostTimeline:
    """Moments, oldest first. Drops the oldest beyond `limit_bytes`. For one thread."""

    def __init__(self, limit_bytes: int | None = LIVE_BYTES) -> None:
        self.moments: list[Moment] = []
        self.is_full = False  # moments were dropped, so nothing older fits
        self._samples = Samples()
        self._eventful: list[Moment] = []  # moments with events
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._decoded: tuple[Moment, Snapshot] | None = None
        self._latest: tuple[Moment, neuron_pb2.Snapshot] | None = None

    def __len__(self) -> int:
        return len(self.moments)

    def append(self, moment: Moment, message: neuron_pb2.Snapshot | None = None) -> None:
        """Adds a moment newer than all others. `message` saves unpacking it while it is the latest."""
        self.moments.append(moment)
        self._latest = (moment, message) if message is not None else None
        self._samples.append(moment.sample)
        if moment.events:
            self._eventful.append(moment)
        self._bytes += moment.size_bytes
        self._drop_beyond_the_limit()

    def merge(self, moments: Sequence[Moment]) -> int:
        """Adds moments at any position and in any order. Returns how many are new. Known moments only get new events.

        Moments that would be dropped at once are not added.
        """
        given = {moment.at_seconds: moment for moment in sorted(moments, key=_at)}
        if not given:
            return 0
        low = bisect_left(self.moments, min(given), key=_at)
        high = bisect_right(self.moments, max(given), key=_at)
        known = {moment.at_seconds: moment for moment in self.moments[low:high]}
        new = [moment for at_seconds, moment in given.items() if at_seconds not in known]
        self.moments[low:high] = sorted({**known, **given}.values(), key=_at)
        self._samples.insert([moment.sample for moment in new])
        self._eventful = [moment for moment in self.moments if moment.events]
        self._bytes += sum(moment.size_bytes for moment in new)
        return len(new) - self._drop_beyond_the_limit()

    def _drop_beyond_the_limit(self) -> int:
        if self._limit_bytes is None:
            return 0
        drop = 0
        while self._bytes > self._limit_bytes and drop < len(self.moments) - 1:
            self._bytes -= self.moments[drop].size_bytes
            drop += 1
        if drop:
            self.is_full = True
            del self.moments[:drop]
            self._samples.drop(drop)
            del self._eventful[: bisect_left(self._eventful, self.moments[0].at_seconds, key=_at)]
        return drop

    def index_at(self, at_seconds: float) -> int:
        """The index of the last moment at or before this time; 0 if all are later."""
        return max(0, bisect_right(self.moments, at_seconds, key=_at) - 1)

    def snapshot(self, index: int) -> Snapshot:
        """Returns the snapshot at an index. The last one is cached."""
        moment = self.moments[index]
        if self._decoded is None or self._decoded[0] is not moment:
            at_hand = self._latest
            if at_hand is not None and at_hand[0] is moment:
                self._decoded = (moment, snapshot_on_demand(at_hand[1]))
            else:
                self._decoded = (moment, moment.snapshot())
        return self._decoded[1]

    def series(self, index: int) -> Series:
        """The samples of the moments up to this index."""
        return Series(self._samples, index + 1)

    def gaps(self) -> list[tuple[float, float]]:
        """The gaps: from the moment before each to the moment after it."""
        return self._samples.gaps(float("-inf"))

    def events(self, index: int, limit: int = 500) -> tuple[HostEvent, ...]:
        """The latest events up to this index, oldest first."""
        found: list[HostEvent] = []
        end = bisect_right(self._eventful, self.moments[index].at_seconds, key=_at)
        for position in range(end - 1, -1, -1):
            found.extend(reversed(self._eventful[position].events))
            if len(found) >= limit:
                break
        return tuple(reversed(found[:limit]))

    def event_times(self, limit: int) -> tuple[float, ...]:
        """Times of the latest moments with events."""
        return tuple(moment.at_seconds for moment in self._eventful[-limit:])

    def next_event(self, index: int, step: int) -> int | None:
        """The index of the next moment with an event, forwards (1) or backwards (-1)."""
        at_seconds = self.moments[index].at_seconds
        if step > 0:
            position = bisect_right(self._eventful, at_seconds, key=_at)
        else:
            position = bisect_left(self._eventful, at_seconds, key=_at) - 1
        return self.index_at(self._eventful[position].at_seconds) if 0 <= position < len(self._eventful) else None


_OWN_BYTES = 600  # Python objects of a moment and its sample


@dataclass(frozen=True, slots=True)
class Moment:
    """One packed snapshot, with the data that views need without unpacking."""

    at_seconds: float
    """Position in the timeline: CLOCK_MONOTONIC of the host, continued after a reboot."""
    at_unix_seconds: float  # the host's clock, which can be set
    sequence: int
    daemon_pid: int
    packed: PackedMessage
    sample: HostSample
    events: tuple[HostEvent, ...]  # since the previous moment

    def snapshot(self) -> Snapshot:
        """Unpacks the snapshot, which takes some milliseconds. Parts of its processes are decoded on access."""
        return snapshot_on_demand(self.message())

    def message(self) -> neuron_pb2.Snapshot:
        """Unpacks the snapshot as a message of the API."""
        return _parse(self.packed.message())

    @property
    def size_bytes(self) -> int:
        """Approximate memory use."""
        return _OWN_BYTES + self.packed.size_bytes + self.sample.size_bytes


def _parse(message: bytes) -> neuron_pb2.Snapshot:
    return neuron_pb2.GetSnapshotResponse.FromString(message).snapshot


def _decompress(packed: bytes) -> bytes:
    """Decompresses a reply of the daemon. ValueError if it is malformed or too large."""
    try:
        return zlib.decompressobj().decompress(packed, MAX_REPLY_BYTES)
    except zlib.error as error:
        raise ValueError(f"the daemon's history cannot be decompressed: {error}") from error


def is_oldest_first(packed: Sequence[bytes]) -> bool:
    """Whether compressed replies are ordered oldest first."""
    return len(packed) > 1 and _parse(_decompress(packed[0])).sequence < _parse(_decompress(packed[-1])).sequence


class MomentBuilder:
    """Makes moments from replies of the API, in order. For one thread. `latest` is the last snapshot."""

    def __init__(self) -> None:
        self.latest: neuron_pb2.Snapshot | None = None
        self._time = HostClock()
        self._packer = Packer()

    def make(self, message: bytes) -> Moment | None:
        """Makes a moment. None if the reply is not newer than the last one, or has no valid time."""
        snapshot = _parse(message)
        before = self.latest
        at_seconds = self._time.place(snapshot) if _has_time(snapshot) else None
        if at_seconds is None:
            return None
        self.latest = snapshot
        return _moment(snapshot, at_seconds, self._packer.pack(message), before)


class PastMomentBuilder:
    """Makes moments of a daemon's past, from `newest` back to `oldest`, both of which are known. For one thread.

    `oldest` is None if nothing older is known.
    """

    def __init__(self, newest: Moment, oldest: Moment | None) -> None:
        self._oldest = oldest
        self._known = self._after = newest
        self._after_message = newest.message()
        self._packer = Packer()
        self._begun_seconds = newest.at_seconds - self._after_message.taken_at_seconds
        self.is_complete = False

    @property
    def before_sequence(self) -> int:
        """The next request ends before this sequence."""
        return self._after.sequence

    def make(self, packed: bytes) -> tuple[Moment, ...]:
        """Makes the moment of the next older reply, and the moment after it, whose events are known now.

        Returns none if the reply is not older, for example from another daemon. When it reaches `oldest`, the past is
        complete.
        """
        reply = _decompress(packed)
        message = _parse(reply)
        at_seconds = self._begun_seconds + message.taken_at_seconds
        if not _has_time(message) or snapshot_order(message) >= snapshot_order(self._after_message):
            return ()
        if self._oldest is not None and at_seconds <= self._oldest.at_seconds:
            return self.finish()
        after = _with_events(self._after, message, self._after_message)
        before = _moment(message, at_seconds, self._packer.pack(reply), None)
        self._after, self._after_message = before, message
        return before, after

    def finish(self) -> tuple[Moment, ...]:
        """Called when nothing older comes: returns `oldest` again, now with its events."""
        self.is_complete = True
        if self._oldest is None:
            return ()
        return (_with_events(self._after, self._oldest.message(), self._after_message),)


def _moment(
    snapshot: neuron_pb2.Snapshot, at_seconds: float, packed: PackedMessage, before: neuron_pb2.Snapshot | None
) -> Moment:
    return Moment(
        at_seconds,
        snapshot.taken_at_unix_seconds,
        snapshot.sequence,
        snapshot.daemon_pid,
        packed,
        sample_snapshot(snapshot, at_seconds),
        _events(before, snapshot, at_seconds),
    )


def _with_events(moment: Moment, before: neuron_pb2.Snapshot, message: neuron_pb2.Snapshot) -> Moment:
    return replace(moment, events=_events(before, message, moment.at_seconds))


def _events(before: neuron_pb2.Snapshot | None, after: neuron_pb2.Snapshot, at_seconds: float) -> tuple[HostEvent, ...]:
    return tuple(replace(event, at_seconds=at_seconds) for event in events_between(before, after))


def _has_time(snapshot: neuron_pb2.Snapshot) -> bool:
    """Whether its times are valid."""
    times = (snapshot.taken_at_unix_seconds, snapshot.taken_at_seconds)
    return all(0 <= seconds <= LATEST_UNIX_SECONDS for seconds in times)  # NaN fails too


_TOGETHER = 32  # messages in one zlib stream; unpacking the last takes one or two milliseconds
_LEVEL = 6  # 4 % smaller than level 5 at the same speed
_MOST_PIECE_BYTES = 28_000  # zlib looks back 32 KiB, which must reach the same part of the previous message


class PackedMessage:
    """One packed message. Equal objects contain equal messages."""

    __slots__ = ("_number", "_together")

    def __init__(self, together: list[tuple[bytes, ...]], number: int) -> None:
        self._together = together
        self._number = number

    @property
    def size_bytes(self) -> int:
        """Its memory use."""
        return sum(map(len, self._together[self._number]))

    def message(self) -> bytes:
        """Unpacks the message. From any thread."""
        streams = [zlib.decompressobj() for _ in self._together[self._number]]
        message: list[bytes] = []
        for pieces in self._together[: self._number + 1]:
            message = [stream.decompress(piece) for stream, piece in zip(streams, pieces, strict=True)]
        return b"".join(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedMessage) and self.message() == other.message()

    def __hash__(self) -> int:
        return hash(self.message())


class Packer:
    """Packs messages that resemble each other, in order. For one thread."""

    def __init__(self) -> None:
        self._together: list[tuple[bytes, ...]] = []
        self._streams: list[zlib._Compress] = []

    def pack(self, message: bytes) -> PackedMessage:
        """Packs a message; it refers to the ones before it."""
        if len(self._together) in (0, _TOGETHER):
            self._together = []
            count = max(1, -(-len(message) // _MOST_PIECE_BYTES))
            self._streams = [zlib.compressobj(_LEVEL) for _ in range(count)]
        size = -(-len(message) // len(self._streams))
        self._together.append(
            tuple(
                stream.compress(message[number * size : (number + 1) * size]) + stream.flush(zlib.Z_SYNC_FLUSH)
                for number, stream in enumerate(self._streams)
            )
        )
        return PackedMessage(self._together, len(self._together) - 1)


def snapshot_order(snapshot: neuron_pb2.Snapshot) -> tuple[float, int]:
    """A sort key: greater for the later of two snapshots of the same boot of a host.

    The sequence orders snapshots taken at the same time. The sequence alone is not enough, because it starts again with
    each daemon, and in containers every daemon has PID 1.
    """
    return snapshot.taken_at_seconds, snapshot.sequence


class HostClock:
    """Converts snapshot times to one time line: CLOCK_MONOTONIC, continued across reboots of the host."""

    def __init__(self) -> None:
        self._last: tuple[tuple[float, int], float, int] | None = None  # its order, the host's clock, PID of the daemon
        self._begun_seconds = 0.0  # offset of CLOCK_MONOTONIC since the last boot

    def place(self, snapshot: neuron_pb2.Snapshot) -> float | None:
        """Returns the time in seconds; None if the snapshot is not later than the last one."""
        at_seconds, at_unix_seconds = snapshot.taken_at_seconds, snapshot.taken_at_unix_seconds
        if self._last is not None:
            last_order, last_unix_seconds, last_pid = self._last
            if snapshot_order(snapshot) <= last_order:
                last_seconds, _ = last_order
                is_of_a_later_start = (
                    snapshot.daemon_pid != last_pid
                    and at_seconds < last_seconds
                    and at_unix_seconds > last_unix_seconds
                )
                if not is_of_a_later_start:
                    return None
                self._begun_seconds += last_seconds + at_unix_seconds - last_unix_seconds - at_seconds
        self._last = snapshot_order(snapshot), at_unix_seconds, snapshot.daemon_pid
        return self._begun_seconds + at_seconds
