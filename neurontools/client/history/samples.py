"""The numbers of each moment that curves are drawn from, and what of the time between them is not known."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import Protocol, TypeVar, cast

from neurontools.rpc import neuron_pb2

_MOST_CORES = 4096
_GAP_INTERVALS = 2.5  # a pause of more than so many intervals is a gap
_MOST_GATHERED = 48
_at = attrgetter("at_seconds")


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of one snapshot, by index of the physical core and by process; NaN is unknown."""

    at_seconds: float  # where its moment is in the timeline
    owners: tuple[int, ...]  # PID by core, 0 for none
    pids: tuple[int, ...]
    numbers: array[float]  # one array, for there are thousands of samples: three for each core, two for each process
    interval_seconds: float = 1.0  # at which the daemon samples

    @property
    def utilization_ratio(self) -> Sequence[float]:
        """By core."""
        return self._of_cores(0)

    @property
    def flops_per_second(self) -> Sequence[float]:
        """By core."""
        return self._of_cores(1)

    @property
    def memory_bytes(self) -> Sequence[float]:
        """By core."""
        return self._of_cores(2)

    @property
    def executions_per_second(self) -> Sequence[float]:
        """In the order of the PIDs."""
        return self.numbers[3 * len(self.owners) : 3 * len(self.owners) + len(self.pids)]

    @property
    def latency_p99_seconds(self) -> Sequence[float]:
        """Total latency, in the order of the PIDs."""
        return self.numbers[3 * len(self.owners) + len(self.pids) :]

    @property
    def size_bytes(self) -> int:
        """What its numbers take; PIDs are shared with other samples."""
        return self.numbers.itemsize * len(self.numbers)

    def _of_cores(self, place: int) -> array[float]:
        count = len(self.owners)
        return self.numbers[place * count : (place + 1) * count]


def sample_of(snapshot: neuron_pb2.Snapshot, at_seconds: float) -> Sample:
    """The numbers of a snapshot as the API has it."""
    cores: Sequence[neuron_pb2.NeuronCore | None] = snapshot.cores
    if cores and snapshot.cores[-1].index != len(cores) - 1:  # devices are missing in between
        present = {core.index: core for core in snapshot.cores if core.index < _MOST_CORES}
        cores = [present.get(index) for index in range(1 + max(present, default=-1))]
    processes = snapshot.processes
    numbers = [core.utilization_ratio if core and core.HasField("utilization_ratio") else nan for core in cores]
    numbers += [core.flops_per_second if core and core.HasField("flops_per_second") else nan for core in cores]
    numbers += [_memory_bytes(core) for core in cores]
    numbers += [p.executions_per_second if p.HasField("executions_per_second") else nan for p in processes]
    numbers += [p.total_latency.p99_seconds if p.HasField("total_latency") else nan for p in processes]
    return Sample(
        at_seconds,
        _shared(tuple([core.owner_pid if core else 0 for core in cores])),
        _shared(tuple([process.pid for process in processes])),
        array("f", numbers),
        snapshot.interval_seconds,
    )


@lru_cache(64)
def _shared(pids: tuple[int, ...]) -> tuple[int, ...]:
    """The same tuple for equal ones: they hardly ever change, and there are thousands of samples."""
    return pids


def _memory_bytes(core: neuron_pb2.NeuronCore | None) -> float:
    known = core.memory.ListFields() if core else ()
    return sum(size for _, size in known) if known else nan


class Gathering(Protocol):
    """What takes samples, in any order, and keeps what is drawn of them, by steps of the timeline."""

    step_seconds: float

    def add(self, sample: Sample) -> None:
        """Take a sample."""

    def forget(self, first: int) -> None:
        """Forget the steps before the one of this number."""


_Gathering = TypeVar("_Gathering", bound=Gathering)


class Samples:
    """Samples, oldest first, and what is gathered of them for drawing, kept up as they come. For one thread."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples: list[Sample] = []
        self._pauses: list[float] = []  # the ends of those that may be gaps
        self._gathered: dict[object, Gathering] = {}
        for sample in samples:
            self.append(sample)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def between(self, first_seconds: float, end_seconds: float, count: int) -> list[Sample]:
        """Those of the first `count` samples from one moment up to, and without, another."""
        low = bisect_left(self._samples, first_seconds, hi=count, key=_at)
        return self._samples[low : bisect_left(self._samples, end_seconds, lo=low, hi=count, key=_at)]

    def append(self, sample: Sample) -> None:
        """Add one that is newer than all."""
        if self._samples and self._may_be_gap(self._samples[-1], sample):
            self._pauses.append(sample.at_seconds)
        self._samples.append(sample)
        for gathering in self._gathered.values():
            gathering.add(sample)

    def insert(self, samples: Sequence[Sample]) -> None:
        """Add some, oldest first, at moments of which none is known."""
        if not samples:
            return
        self._samples = sorted([*self._samples, *samples], key=_at)
        pairs = zip(self._samples, self._samples[1:], strict=False)
        self._pauses = [after.at_seconds for before, after in pairs if self._may_be_gap(before, after)]
        for gathering in self._gathered.values():
            for sample in samples:
                gathering.add(sample)

    def drop(self, count: int) -> None:
        """Forget the oldest."""
        del self._samples[:count]
        first_at = self._samples[0].at_seconds if self._samples else float("inf")
        del self._pauses[: bisect_right(self._pauses, first_at)]
        for gathering in self._gathered.values() if self._samples else ():
            # Of the step that they ended in some samples are still there.
            first = int(first_at // gathering.step_seconds) + 1
            gathering.forget(first)
            for sample in self.between(first_at, first * gathering.step_seconds, len(self._samples)):
                gathering.add(sample)

    def gathered(self, key: object, empty: Callable[[], _Gathering]) -> _Gathering:
        """What is gathered under a key, from now on kept up; `empty` makes it where there is none yet."""
        found = cast("_Gathering | None", self._gathered.pop(key, None))
        if found is None:
            found = empty()
            for sample in self._samples:
                found.add(sample)
        self._gathered[key] = found  # the last is what was asked for last
        if len(self._gathered) > _MOST_GATHERED:
            del self._gathered[next(iter(self._gathered))]
        return found

    def gaps(self, first_seconds: float) -> list[tuple[float, float]]:
        """The gaps that end after a moment: from the sample before each to the one behind it.

        A pause is a gap when it is much longer than the daemon's interval, and than the pauses around it: who looks
        every ten seconds has none.
        """
        found = []
        for end in self._pauses[bisect_right(self._pauses, first_seconds) :]:
            index = bisect_left(self._samples, end, key=_at)
            near = [self._pause(each) for each in (index - 2, index - 1, index + 1, index + 2)]
            usual = sorted(pause for pause in near if pause is not None)
            if not usual or self._samples[index].at_seconds - self._samples[index - 1].at_seconds > (
                _GAP_INTERVALS * usual[len(usual) // 2]
            ):
                found.append((self._samples[index - 1].at_seconds, end))
        return found

    def _pause(self, index: int) -> float | None:
        if not 0 < index < len(self._samples):
            return None
        return self._samples[index].at_seconds - self._samples[index - 1].at_seconds

    @staticmethod
    def _may_be_gap(before: Sample, after: Sample) -> bool:
        return after.at_seconds - before.at_seconds > _GAP_INTERVALS * max(after.interval_seconds, 0.0)
