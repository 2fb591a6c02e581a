"""Where the time of training goes: each moment is in one part, and what is in no other is the host's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import get_ident

COMPILE, INPUT, TRANSFER, COMPUTE, COLLECTIVE = range(5)
"""Waiting for a program, for the loader, for a copy between host and device; executing; waiting for other ranks."""

Entry = tuple[int, float, float]
"""A part that has begun: which, when by perf_counter, and what had been charged by then."""

_MONOTONIC_SECONDS = time.monotonic() - time.perf_counter()  # both are CLOCK_MONOTONIC on Linux: a few hundred ns


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds by part since the clock began; together the time since then.

    `input_wait_seconds` is None where the script was not seen to use a loader. `compiling_since_seconds`
    and `collective_since_seconds` are CLOCK_MONOTONIC, None while the script waits for no program, is in no collective.
    """

    host_seconds: float
    compile_wait_seconds: float
    input_wait_seconds: float | None
    transfer_seconds: float
    compute_seconds: float
    collective_wait_seconds: float
    compiling_since_seconds: float | None
    collective_since_seconds: float | None


class StepClock:
    """Charges time to parts. Of parts within each other each is charged what was not charged meanwhile.

    What is done by threads of `background` while the script goes on is no part of its time: who charges looks for
    itself whether it is one. Parts of other threads that overlap are charged once, to the one that ends first.
    """

    def __init__(self) -> None:
        self.charged_seconds = 0.0
        self.background: set[int] = set()
        self.latest_collective: str | None = None  # whoever opens one says which
        self._seconds = [0.0] * 5
        self._open: dict[int, Entry] = {}
        self._began_seconds = time.perf_counter()
        self._told_seconds = [0.0] * 6

    def begin(self) -> None:
        """From here on counts the host's time."""
        self._began_seconds = time.perf_counter()

    def open(self, part: int, at_seconds: float) -> Entry:
        """A part begins that may take long: it is known while it lasts."""
        entry = (part, at_seconds, self.charged_seconds)
        self._open[id(entry)] = entry
        return entry

    def close(self, entry: Entry, at_seconds: float) -> None:
        """It has ended."""
        del self._open[id(entry)]
        part, began_seconds, charged_before = entry
        self.charge(part, at_seconds - began_seconds, charged_before)

    def close_collective(self, entry: Entry, at_seconds: float, wait_seconds: float) -> None:
        """A collective has ended, of which so much was waiting for others; the rest is computing."""
        del self._open[id(entry)]
        _, began_seconds, charged_before = entry
        self.charge(COLLECTIVE, min(wait_seconds, at_seconds - began_seconds), charged_before)
        self.charge(COMPUTE, at_seconds - began_seconds, charged_before)

    def charge(self, part: int, seconds: float, charged_before: float) -> None:
        """Charges what took so long, but for what was charged since `charged_before` was read."""
        rest = seconds - (self.charged_seconds - charged_before)
        if rest > 0.0:
            self._seconds[part] += rest
            self.charged_seconds += rest

    def is_background(self) -> bool:
        """Whether the script does not wait for what this thread does."""
        return bool(self.background) and get_ident() in self.background

    def so_far(self) -> StepTimes:
        """The times of this moment, what lasts included; no part falls. No lock is needed."""
        now = time.perf_counter()
        seconds, charged = self._seconds.copy(), self.charged_seconds
        since: dict[int, float] = {}
        for part, began_seconds, charged_before in sorted(self._open.copy().values(), key=_began, reverse=True):
            rest = now - began_seconds - (charged - charged_before)
            if rest > 0.0:
                seconds[part] += rest
                charged += rest
            since[part] = began_seconds + _MONOTONIC_SECONDS  # the last one began first
        told = self._told_seconds = [
            max(pair) for pair in zip(self._told_seconds, [*seconds, now - self._began_seconds - charged], strict=True)
        ]
        return StepTimes(
            host_seconds=told[5],
            compile_wait_seconds=told[COMPILE],
            input_wait_seconds=told[INPUT] or None,
            transfer_seconds=told[TRANSFER],
            compute_seconds=told[COMPUTE],
            collective_wait_seconds=told[COLLECTIVE],
            compiling_since_seconds=since.get(COMPILE),
            collective_since_seconds=since.get(COLLECTIVE),
        )


def _began(entry: Entry) -> float:
    return entry[1]


step_clock = StepClock()
