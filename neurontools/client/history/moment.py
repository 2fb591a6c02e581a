"""One moment of a host as a timeline keeps it: packed, with what is needed of it without unpacking."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neurontools.client.history.events import Event, events_between
from neurontools.client.history.packing import Packed, Packer
from neurontools.client.history.samples import Sample, sample_of
from neurontools.client.recording.host_time import HostTime, order
from neurontools.model import Snapshot
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import MAX_REPLY_BYTES
from neurontools.rpc.convert import snapshot_on_demand

_OWN_BYTES = 600  # of the objects that a moment and its sample are


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
    packed: Packed
    sample: Sample
    events: tuple[Event, ...]  # since the moment before

    def snapshot(self) -> Snapshot:
        """The snapshot, unpacked: some milliseconds. Parts of its processes are made when they are asked for."""
        return snapshot_on_demand(self.message())

    def message(self) -> neuron_pb2.Snapshot:
        """The snapshot as the API has it, unpacked."""
        return _parsed(self.packed.message())

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return _OWN_BYTES + self.packed.size_bytes + self.sample.size_bytes


def _parsed(message: bytes) -> neuron_pb2.Snapshot:
    return neuron_pb2.GetSnapshotResponse.FromString(message).snapshot


def _inflated(packed: bytes) -> bytes:
    """The message that a daemon has packed; ValueError for what is no such thing, or too much."""
    try:
        return zlib.decompressobj().decompress(packed, MAX_REPLY_BYTES)
    except zlib.error as error:
        raise ValueError(f"what the daemon keeps can't be unpacked: {error}") from error


def is_older_first(packed: Sequence[bytes]) -> bool:
    """Whether replies that a daemon has packed are in the order in which they were made."""
    return len(packed) > 1 and _parsed(_inflated(packed[0])).sequence < _parsed(_inflated(packed[-1])).sequence


class MomentMaker:
    """Makes moments of replies of the API, in order; for one thread. `latest` is what the last one was made of."""

    def __init__(self) -> None:
        self.latest: neuron_pb2.Snapshot | None = None
        self._time = HostTime()
        self._packer = Packer()

    def make(self, message: bytes) -> Moment | None:
        """The moment of a reply; None when it isn't newer than the one before, or of no time that can be shown."""
        snapshot = _parsed(message)
        before = self.latest
        at_seconds = self._time.place(snapshot) if _has_time(snapshot) else None
        if at_seconds is None:
            return None
        self.latest = snapshot
        return _moment(snapshot, at_seconds, self._packer.pack(message), before)


class PastMaker:
    """Makes moments of the past of one daemon, newest first, from `newest` down to `oldest`; for one thread.

    Both are known already; `oldest` is None where nothing older is.
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
        """What is asked for next ends before it."""
        return self._after.sequence

    def make(self, packed: bytes) -> tuple[Moment, ...]:
        """The moment of the next older reply, and the one after it, whose events are known by now.

        None of them when the reply isn't older, as one of another daemon. Where it reaches what is known, the past
        is complete.
        """
        reply = _inflated(packed)
        message = _parsed(reply)
        at_seconds = self._begun_seconds + message.taken_at_seconds
        if not _has_time(message) or order(message) >= order(self._after_message):
            return ()
        if self._oldest is not None and at_seconds <= self._oldest.at_seconds:
            return self.finish()
        after = _with_events(self._after, message, self._after_message)
        before = _moment(message, at_seconds, self._packer.pack(reply), None)
        self._after, self._after_message = before, message
        return before, after

    def finish(self) -> tuple[Moment, ...]:
        """There is nothing older to come: the oldest moment that was made, with what happened since the one before."""
        self.is_complete = True
        if self._oldest is None:
            return ()
        return (_with_events(self._after, self._oldest.message(), self._after_message),)


def _moment(
    snapshot: neuron_pb2.Snapshot, at_seconds: float, packed: Packed, before: neuron_pb2.Snapshot | None
) -> Moment:
    return Moment(
        at_seconds,
        snapshot.taken_at_unix_seconds,
        snapshot.sequence,
        snapshot.daemon_pid,
        packed,
        sample_of(snapshot, at_seconds),
        _events(before, snapshot, at_seconds),
    )


def _with_events(moment: Moment, before: neuron_pb2.Snapshot, message: neuron_pb2.Snapshot) -> Moment:
    return replace(moment, events=_events(before, message, moment.at_seconds))


def _events(before: neuron_pb2.Snapshot | None, after: neuron_pb2.Snapshot, at_seconds: float) -> tuple[Event, ...]:
    return tuple(replace(event, at_seconds=at_seconds) for event in events_between(before, after))


def _has_time(snapshot: neuron_pb2.Snapshot) -> bool:
    """Whether it can be shown when it was taken."""
    times = (snapshot.taken_at_unix_seconds, snapshot.taken_at_seconds)
    return all(0 <= seconds <= LATEST_UNIX_SECONDS for seconds in times)  # NaN fails too
