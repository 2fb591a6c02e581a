"""Where the time of executions goes, by kind of operator: by a few executions that are timed by instruction.

All others pay for a comparison. A program's shares are those of its timed executions, its time is that of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Protocol

from neurontools.model import OperatorTime
from neurontools.rpc.report_limits import MOST_OPERATORS

_FIRST_SAMPLE = 16  # executions: the ones before are checked, cold and not followed yet
_SAMPLE_EVERY = 61  # of executions; a prime, so that what comes round in a training is met at each of its turns
_MAKING_SECONDS = 100e-6  # an instruction: what the timed form of a program takes to be made
_MAKING_RATIO = 0.004  # of a program's time so far that making it may take


class OperatorSamples:
    """The timed executions of one program, and when the next one is due; under the runtime's lock.

    `names` are the operators of its instructions, `seconds` is the time of all its executions.
    """

    __slots__ = ("counts", "kind_of", "names", "nanoseconds", "next_at", "seconds", "told_seconds", "told_times")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.kind_of = tuple(numbers[name] for name in names)
        self.counts = tuple(names.count(name) for name in self.names)
        self.nanoseconds = [0] * len(self.names)
        self.next_at = _FIRST_SAMPLE
        self.seconds = 0.0
        self.told_seconds = 0.0
        self.told_times = 0

    def is_due(self) -> bool:
        """At execution `next_at`: whether to time it, which takes a timed form of the program; sets the next one."""
        self.next_at += _SAMPLE_EVERY
        return len(self.kind_of) * _MAKING_SECONDS <= _MAKING_RATIO * self.seconds

    def note(self, times_ns: tuple[int, ...]) -> None:
        """A timed execution: the times before its first instruction and after each."""
        nanoseconds, before = self.nanoseconds, times_ns[0]
        for number, after in zip(self.kind_of, times_ns[1:], strict=True):
            nanoseconds[number] += after - before
            before = after


class SampledProgram(Protocol):
    """A program on a core."""

    executions: int
    samples: OperatorSamples


class OperatorTimes:
    """Sums over all programs of the process. Only grows; any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds: dict[str, float] = {}
        self._executions: dict[str, int] = {}

    def settle(self, program: SampledProgram) -> None:
        """Takes in what a program executed since it was last settled."""
        samples = program.samples
        with self._lock:
            seconds, times = samples.seconds, program.executions
            spent, executed = seconds - samples.told_seconds, times - samples.told_times
            samples.told_seconds, samples.told_times = seconds, times
            nanoseconds = samples.nanoseconds.copy()
            whole = sum(nanoseconds)
            if not whole:
                self._add("", spent, executed * len(samples.kind_of))
                return
            for name, own, count in zip(samples.names, nanoseconds, samples.counts, strict=True):
                self._add(name, spent * own / whole, executed * count)

    def _add(self, name: str, seconds: float, executions: int) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._executions[name] = self._executions.get(name, 0) + executions

    def so_far(self, programs: Iterable[SampledProgram]) -> tuple[OperatorTime, ...]:
        """The kinds that took most, at most MOST_OPERATORS with the rest, which comes last and has no name."""
        for program in programs:
            self.settle(program)
        with self._lock:
            kinds = sorted((name for name in self._seconds if name), key=lambda name: -self._seconds[name])
            rest = [name for name in self._seconds if name not in kinds[: MOST_OPERATORS - 1]]
            found = [
                OperatorTime(name, self._seconds[name], self._executions[name]) for name in kinds[: MOST_OPERATORS - 1]
            ]
            if rest:
                seconds = sum(self._seconds[name] for name in rest)
                found.append(OperatorTime("", seconds, sum(self._executions[name] for name in rest)))
            return tuple(found)
