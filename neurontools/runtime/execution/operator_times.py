"""Execution time by operator, measured by sampling.

A few executions of a program are timed instruction by instruction; all others only cost one comparison. The timed
executions give the share of each operator, and all executions give the total time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Protocol

from neurontools.model import OperatorTime
from neurontools.rpc.report_limits import MOST_OPERATORS

_FIRST_SAMPLE = 16  # executions before the first sample; early executions are slower
_SAMPLE_EVERY = 61  # executions per sample; a prime, so that samples reach every position of a periodic loop
_PREPARATION_SECONDS = 100e-6  # estimated seconds per instruction to prepare a timed execution
_PREPARATION_RATIO = 0.004  # largest share of a program's execution time so far that the preparation may take


class OperatorSamples:
    """The timed executions of one program, and which execution to time next. Callers hold the runtime's lock.

    `names` has each operator of the program once. `seconds` is the total time of all executions, whether
    their operators were timed or not.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.kind_of = tuple(numbers[name] for name in names)
        self.counts = tuple(names.count(name) for name in self.names)
        self.nanoseconds = [0] * len(self.names)
        self.next_at = _FIRST_SAMPLE
        self.seconds = 0.0
        self.counted_seconds = 0.0
        self.counted_executions = 0

    def is_due(self) -> bool:
        """Returns whether to time the operators of this execution, and advances `next_at`, the next execution to time.

        Returns False while the preparation would take too large a share of the program's time so far.
        """
        self.next_at += _SAMPLE_EVERY
        return len(self.kind_of) * _PREPARATION_SECONDS <= _PREPARATION_RATIO * self.seconds

    def add_times(self, times_ns: tuple[int, ...]) -> None:
        """Adds a timed execution. `times_ns` has the clock before the first instruction and after each instruction."""
        nanoseconds, before = self.nanoseconds, times_ns[0]
        for number, after in zip(self.kind_of, times_ns[1:], strict=True):
            nanoseconds[number] += after - before
            before = after


class SampledProgram(Protocol):
    """The attributes of a loaded program that OperatorTimes reads."""

    executions: int
    samples: OperatorSamples


class OperatorTimes:
    """Sums the operator times of all programs of the process. The sums only grow; any thread may read them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds: dict[str, float] = {}
        self._executions: dict[str, int] = {}

    def count_executions(self, program: SampledProgram) -> None:
        """Adds a program's executions since the last call. Until an execution is sampled, the operator name is ""."""
        samples = program.samples
        with self._lock:
            seconds, times = samples.seconds, program.executions
            new_seconds, executed = seconds - samples.counted_seconds, times - samples.counted_executions
            samples.counted_seconds, samples.counted_executions = seconds, times
            nanoseconds = samples.nanoseconds.copy()
            whole = sum(nanoseconds)
            if not whole:
                self._add("", new_seconds, executed * len(samples.kind_of))
                return
            for name, own, count in zip(samples.names, nanoseconds, samples.counts, strict=True):
                self._add(name, new_seconds * own / whole, executed * count)

    def _add(self, name: str, seconds: float, executions: int) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._executions[name] = self._executions.get(name, 0) + executions

    def totals_by_operator(self, programs: Iterable[SampledProgram]) -> tuple[OperatorTime, ...]:
        """Returns the operators with the largest total times, at most MOST_OPERATORS rows.

        The last row has an empty name and sums all remaining operators, if any.
        """
        for program in programs:
            self.count_executions(program)
        with self._lock:
            names = sorted((name for name in self._seconds if name), key=lambda name: -self._seconds[name])
            listed = names[: MOST_OPERATORS - 1]
            rest = [name for name in self._seconds if name not in listed]
            found = [OperatorTime(name, self._seconds[name], self._executions[name]) for name in listed]
            if rest:
                seconds = sum(self._seconds[name] for name in rest)
                found.append(OperatorTime("", seconds, sum(self._executions[name] for name in rest)))
            return tuple(found)
