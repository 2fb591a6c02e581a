"""The timeline of a host: a list of moments. A `Moment` is one packed snapshot with its sample and events."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from neurontools.client.events import EventLog, HostEvent, events_between
from neurontools.client.packing import SMALL_LEVEL, PackedMessage, Packer
from neurontools.client.samples import HostSample, Samples, Series, sample_snapshot
from neurontools.model import Snapshot
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import MAX_REPLY_BYTES
from neurontools.rpc.convert import snapshot_on_demand

LIVE_BYTES = 5472 * 2**10
"""Memory limit of a live view: fits 17 minutes of a trn1.32xlarge at 1 Hz; the daemon keeps 10 by default."""

_at = attrgetter("at_seconds")


class HostTimeline:
    """The snapshots of a host as a list of `Moment`, oldest first. Drops old snapshots beyond `limit_bytes`.

    Not thread-safe.
    """

    def __init__(self, limit_bytes: int | None = LIVE_BYTES) -> None:
        self.moments: list[Moment] = []
        self.is_full = False  # whether old snapshots were dropped to stay within `limit_bytes`
        self._samples = Samples()
        self._eventful: list[Moment] = []  # all `moments` that have events
        self._event_log, self._logged = EventLog(), 0  # the events of the first so many of `_eventful`
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._decoded: tuple[Moment, Snapshot] | None = None
        self._latest: tuple[Moment, neuron_pb2.Snapshot] | None = None

    def __len__(self) -> int:
        return len(self.moments)

    def append(self, moment: Moment, message: neuron_pb2.Snapshot | None = None) -> None:
        """Adds a snapshot that is newer than all others.

        `message` is the unpacked snapshot, if the caller has it. It is cached until the next `append`.
        """
        self.moments.append(moment)
        self._latest = (moment, message) if message is not None else None
        self._samples.append(moment.sample)
        if moment.events:
            self._eventful.append(moment)
        self._bytes += moment.size_bytes
        self._drop_beyond_the_limit()

    def merge(self, moments: Sequence[Moment]) -> int:
        """Inserts snapshots, given in any order, and returns by how many the timeline grew.

        If the timeline has a snapshot of the same time, the given snapshot replaces it and its events. The oldest
        snapshots beyond the memory limit are dropped.
        """
        given = {moment.at_seconds: moment for moment in sorted(moments, key=_at)}
        if not given:
            return 0
        low = bisect_left(self.moments, min(given), key=_at)
        high = bisect_right(self.moments, max(given), key=_at)
        moments_by_time = {moment.at_seconds: moment for moment in self.moments[low:high]}
        new = [moment for at_seconds, moment in given.items() if at_seconds not in moments_by_time]
        self.moments[low:high] = sorted({**moments_by_time, **given}.values(), key=_at)
        self._samples.insert([moment.sample for moment in new])
        self._eventful = [moment for moment in self.moments if moment.events]
        self._event_log, self._logged = EventLog(), 0
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
            dropped = bisect_left(self._eventful, self.moments[0].at_seconds, key=_at)
            del self._eventful[:dropped]
            self._logged -= dropped
        return drop

    def index_at(self, at_seconds: float) -> int:
        """Returns the index of the last snapshot at or before this time; 0 if all snapshots are later."""
        return max(0, bisect_right(self.moments, at_seconds, key=_at) - 1)

    def snapshot(self, index: int) -> Snapshot:
        """Returns the snapshot at an index. The most recently returned snapshot is cached."""
        moment = self.moments[index]
        if self._decoded is None or self._decoded[0] is not moment:
            at_hand = self._latest
            if at_hand is not None and at_hand[0] is moment:
                self._decoded = (moment, snapshot_on_demand(at_hand[1]))
            else:
                self._decoded = (moment, moment.snapshot())
        return self._decoded[1]

    def series(self, index: int) -> Series:
        """Returns the samples up to and including this index, for plots."""
        return Series(self._samples, index + 1)

    def gaps(self) -> list[tuple[float, float]]:
        """Returns the gaps between samples, each as the times of the samples before and after it."""
        return self._samples.gaps(float("-inf"))

    def events(self, index: int) -> tuple[HostEvent, ...]:
        """Returns the events of the snapshots up to and including this index, folded into bursts, oldest first."""
        end = bisect_right(self._eventful, self.moments[index].at_seconds, key=_at)
        if not 0 <= self._logged <= end:
            self._event_log, self._logged = EventLog(), 0
        for moment in self._eventful[self._logged : end]:
            for event in moment.events:
                self._event_log.add(event)
        self._logged = end
        begin = self.moments[0].at_seconds
        return tuple([event for event in self._event_log.events() if event.at_seconds >= begin])

    def event_times(self, limit: int) -> tuple[float, ...]:
        """Returns the times of the latest `limit` snapshots that have events, oldest first."""
        return tuple(moment.at_seconds for moment in self._eventful[-limit:])

    def next_event(self, index: int, step: int) -> int | None:
        """Returns the index of the next (`step` 1) or previous (-1) snapshot with events; None if there is none."""
        at_seconds = self.moments[index].at_seconds
        if step > 0:
            position = bisect_right(self._eventful, at_seconds, key=_at)
        else:
            position = bisect_left(self._eventful, at_seconds, key=_at) - 1
        return self.index_at(self._eventful[position].at_seconds) if 0 <= position < len(self._eventful) else None


_OWN_BYTES = 600  # size of the Python objects of a `Moment` and its sample


@dataclass(frozen=True, slots=True)
class Moment:
    """One packed snapshot in a timeline, with the data that views need without unpacking it."""

    at_seconds: float
    """Time in the timeline: CLOCK_MONOTONIC of the host, continued across reboots."""
    at_unix_seconds: float  # time of the snapshot by the host's wall clock, which can be set
    sequence: int
    daemon_pid: int
    packed: PackedMessage
    sample: HostSample
    events: tuple[HostEvent, ...]  # events since the previous snapshot

    def snapshot(self) -> Snapshot:
        """Unpacks and returns the snapshot: takes some milliseconds. Parts of its processes are decoded on access."""
        return snapshot_on_demand(self.message())

    def message(self) -> neuron_pb2.Snapshot:
        """Unpacks and returns the snapshot as a protobuf message."""
        return _parse(self.packed.message())

    @property
    def size_bytes(self) -> int:
        """Approximate memory use of the moment with its sample and packed snapshot."""
        return _OWN_BYTES + self.packed.size_bytes + self.sample.size_bytes


def _parse(message: bytes) -> neuron_pb2.Snapshot:
    return neuron_pb2.GetSnapshotResponse.FromString(message).snapshot


def _decompress(packed: bytes) -> bytes:
    """Decompresses a zlib-compressed reply of the daemon, up to MAX_REPLY_BYTES. Raises ValueError if malformed."""
    try:
        return zlib.decompressobj().decompress(packed, MAX_REPLY_BYTES)
    except zlib.error as error:
        raise ValueError(f"the daemon's history cannot be decompressed: {error}") from error


def is_oldest_first(packed: Sequence[bytes]) -> bool:
    """Returns whether the first compressed reply has an older snapshot than the last one."""
    return len(packed) > 1 and _parse(_decompress(packed[0])).sequence < _parse(_decompress(packed[-1])).sequence


class MomentBuilder:
    """Converts the snapshots of a daemon or recording to `Moment` objects, in order. `latest` is the last snapshot.

    `level` is the zlib level of the packed snapshots. Not thread-safe.
    """

    def __init__(self, level: int = SMALL_LEVEL) -> None:
        self.latest: neuron_pb2.Snapshot | None = None
        self._time = HostClock()
        self._packer = Packer(level)

    def make(self, message: bytes, snapshot: neuron_pb2.Snapshot | None = None) -> Moment | None:
        """Converts an encoded GetSnapshotResponse to a `Moment`. `snapshot` is its snapshot, if the caller has it.

        Returns None if the snapshot is not newer than the last one, or has no valid time.
        """
        snapshot = _parse(message) if snapshot is None else snapshot
        before = self.latest
        at_seconds = self._time.timeline_seconds(snapshot) if has_valid_times(snapshot) else None
        if at_seconds is None:
            return None
        self.latest = snapshot
        return _moment(snapshot, at_seconds, self._packer.pack(message), before)


class PastMomentBuilder:
    """Converts the daemon's history between `newest` and `oldest` to `Moment` objects, newest first.

    `oldest` is None if the timeline has no snapshot before `newest`. Not thread-safe.
    """

    def __init__(self, newest: Moment, oldest: Moment | None) -> None:
        self._oldest = oldest
        self._after = newest
        self._after_message: neuron_pb2.Snapshot | None = newest.message()
        self._packer = Packer()
        self.begun_seconds = newest.at_seconds - self._after_message.taken_at_seconds
        """Time in the timeline minus the host's CLOCK_MONOTONIC."""
        self.is_complete = False

    @property
    def before_sequence(self) -> int:
        """The next request asks for snapshots before this sequence number."""
        return self._after.sequence

    def make(self, packed: bytes) -> tuple[Moment, ...]:
        """Converts the next older reply. Returns its `Moment`, and the previous `Moment` again, now with events.

        The events of a snapshot are its differences from the snapshot before. Returns () if the reply is not older than
        the previous reply, for example if another daemon sent it. A reply at or before `oldest` completes the range.
        """
        reply = _decompress(packed)
        message = _parse(reply)
        at_seconds = self.begun_seconds + message.taken_at_seconds
        if not has_valid_times(message) or not self._is_older(at_seconds, message.sequence):
            return ()
        if self._oldest is not None and at_seconds <= self._oldest.at_seconds:
            return self.finish()
        after = self._after_with_events(message)
        before = _moment(message, at_seconds, self._packer.pack(reply), None)
        self._after, self._after_message = before, message
        return before, after

    def finish(self) -> tuple[Moment, ...]:
        """Completes the range. If `oldest` is given, returns the `Moment` after `oldest` again, now with events."""
        self.is_complete = True
        return () if self._oldest is None else (self._after_with_events(self._oldest.message()),)

    def add(self, moments: Iterable[Moment]) -> list[Moment]:
        """Adds moments from the daemon, newest first. Returns those that belong to the range, with their events.

        The daemon knows the events of its own moments, except those of `newest`, which may be between two of its ticks.
        """
        found: list[Moment] = []
        for moment in moments:
            if not self._is_older(moment.at_seconds, moment.sequence):
                continue
            if self._oldest is not None and moment.at_seconds <= self._oldest.at_seconds:
                return [*found, *self.finish()]
            if self._after_message is not None:
                found.append(self._after_with_events(moment.message()))
            found.append(moment)
            self._after, self._after_message = moment, None
        return found

    def _is_older(self, at_seconds: float, sequence: int) -> bool:
        return (at_seconds, sequence) < (self._after.at_seconds, self._after.sequence)

    def _after_with_events(self, before: neuron_pb2.Snapshot) -> Moment:
        after = self._after.message() if self._after_message is None else self._after_message
        return replace(self._after, events=_events(before, after, self._after.at_seconds))


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


def _events(before: neuron_pb2.Snapshot | None, after: neuron_pb2.Snapshot, at_seconds: float) -> tuple[HostEvent, ...]:
    return tuple(replace(event, at_seconds=at_seconds) for event in events_between(before, after))


def has_valid_times(snapshot: neuron_pb2.Snapshot | neuron_pb2.HistoryMoment) -> bool:
    """Returns whether the times of a snapshot are valid."""
    times = (snapshot.taken_at_unix_seconds, snapshot.taken_at_seconds)
    return all(0 <= seconds <= LATEST_UNIX_SECONDS for seconds in times)  # NaN fails this test


def snapshot_order(snapshot: neuron_pb2.Snapshot) -> tuple[float, int]:
    """Returns a sort key for the snapshots of a host from one boot: later snapshots have greater keys.

    The sequence number orders snapshots taken at the same time. It is not the only key, because it restarts with each
    daemon. The daemon's PID is not part of the key: in a container it is always 1.
    """
    return snapshot.taken_at_seconds, snapshot.sequence


class HostClock:
    """Converts the times of a host's snapshots to one timeline: CLOCK_MONOTONIC, continued across reboots."""

    def __init__(self) -> None:
        # `snapshot_order`, wall-clock time and daemon PID of the last snapshot
        self._last: tuple[tuple[float, int], float, int] | None = None
        self._begun_seconds = 0.0  # timeline time minus the host's CLOCK_MONOTONIC; grows with each reboot of the host

    def timeline_seconds(self, snapshot: neuron_pb2.Snapshot) -> float | None:
        """Returns a snapshot's time on the timeline, in seconds; None if it is not newer than the last snapshot."""
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
