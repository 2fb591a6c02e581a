"""The moments of a host that can be looked at: the recent past of a live view, or a whole recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from neurontools.client.history.events import Event
from neurontools.client.history.moment import Moment
from neurontools.client.history.samples import Samples
from neurontools.client.history.series import Series
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import snapshot_on_demand

LIVE_BYTES = 5472 * 2**10
"""How much past a live view keeps; 20 minutes of a trn1.32xlarge at 1 Hz, twice what a daemon has by default."""

_at = attrgetter("at_seconds")


class Timeline:
    """Moments, oldest first, the oldest dropped when they take more than `limit_bytes`. For one thread."""

    def __init__(self, limit_bytes: int | None = LIVE_BYTES) -> None:
        self.moments: list[Moment] = []
        self.is_full = False  # something was dropped, and nothing older can be taken
        self._samples = Samples()
        self._eventful: list[Moment] = []  # those with events
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._decoded: tuple[Moment, Snapshot] | None = None
        self._latest: tuple[Moment, neuron_pb2.Snapshot] | None = None

    def __len__(self) -> int:
        return len(self.moments)

    def append(self, moment: Moment, message: neuron_pb2.Snapshot | None = None) -> None:
        """Add a moment, which must be newer than all; with its message, until the next one, it need not be unpacked."""
        self.moments.append(moment)
        self._latest = (moment, message) if message is not None else None
        self._samples.append(moment.sample)
        if moment.events:
            self._eventful.append(moment)
        self._bytes += moment.size_bytes
        self._drop_beyond_the_limit()

    def merge(self, moments: Sequence[Moment]) -> int:
        """Add moments wherever they belong, in any order; of a known one only the events are taken. How many are new.

        What would have to be dropped at once isn't taken.
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
        """The moment at or before this one, by position; the first when all are later."""
        return max(0, bisect_right(self.moments, at_seconds, key=_at) - 1)

    def snapshot(self, index: int) -> Snapshot:
        """The snapshot at a position; asking again for the same is free."""
        moment = self.moments[index]
        if self._decoded is None or self._decoded[0] is not moment:
            at_hand = self._latest
            if at_hand is not None and at_hand[0] is moment:
                self._decoded = (moment, snapshot_on_demand(at_hand[1]))
            else:
                self._decoded = (moment, moment.snapshot())
        return self._decoded[1]

    def series(self, index: int) -> Series:
        """The numbers of the moments up to this position."""
        return Series(self._samples, index + 1)

    def gaps(self) -> list[tuple[float, float]]:
        """The stretches of which nothing is known: from the moment before each to the one behind it."""
        return self._samples.gaps(float("-inf"))

    def events(self, index: int, limit: int = 500) -> tuple[Event, ...]:
        """The latest events up to this position, oldest first."""
        found: list[Event] = []
        end = bisect_right(self._eventful, self.moments[index].at_seconds, key=_at)
        for position in range(end - 1, -1, -1):
            found.extend(reversed(self._eventful[position].events))
            if len(found) >= limit:
                break
        return tuple(reversed(found[:limit]))

    def event_times(self, limit: int) -> tuple[float, ...]:
        """Where the latest moments with events are."""
        return tuple(moment.at_seconds for moment in self._eventful[-limit:])

    def next_event(self, index: int, step: int) -> int | None:
        """The position of the next moment with an event, forwards (1) or backwards (-1)."""
        at_seconds = self.moments[index].at_seconds
        if step > 0:
            position = bisect_right(self._eventful, at_seconds, key=_at)
        else:
            position = bisect_left(self._eventful, at_seconds, key=_at) - 1
        return self.index_at(self._eventful[position].at_seconds) if 0 <= position < len(self._eventful) else None
