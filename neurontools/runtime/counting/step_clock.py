"""Where the time of training goes: each moment is in one part, and what is in no other is the host's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident

COMPILE, INPUT, TRANSFER, COMPUTE, COLLECTIVE = range(5)
"""Waiting for a program, for the loader, for a copy between host and device; executing; waiting for other ranks."""

Entry = tuple[int, float, float]
"""A part that has begun: which, when by perf_counter, and what had been charged by then."""

_MONOTONIC_SECONDS = time.monotonic() - time.perf_counter()  # both are CLOCK_MONOTONIC on Linux: a few hundred ns


@dataclass(frozen=True, slots=True)
class StepTimeParts:
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
    `clock` is what the moments are by that it is told of.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.charged_seconds = 0.0
        self.background: set[int] = set()
        self.latest_collective: str | None = None  # whoever opens one says which
        self._seconds = [0.0] * 5
        self._open: dict[int, Entry] = {}
        self._clock = clock
        self._began_seconds = clock()
        self._told_seconds = [0.0] * 6  # by part, the host's last
        self._lock = Lock()  # of those who ask; who charges waits for nobody

    def begin(self) -> None:
        """From here on counts the host's time; what has been told of it stays."""
        self._began_seconds = self._clock() - max(self.charged_seconds, sum(self._told_seconds))

    def open(self, part: int, at_seconds: float) -> Entry:
        """A part begins that may take long: it is known while it lasts."""
        entry = (part, at_seconds, self.charged_seconds)
        self._open[id(entry)] = entry
        return entry

    def close(self, entry: Entry, at_seconds: float) -> None:
        """It has ended."""
        part, began_seconds, charged_before = entry
        self.charge(part, at_seconds - began_seconds, charged_before)
        del self._open[id(entry)]

    def close_collective(self, entry: Entry, at_seconds: float, wait_seconds: float) -> None:
        """A collective has ended, of which so much was waiting for others; the rest is computing."""
        _, began_seconds, charged_before = entry
        self.charge(COLLECTIVE, min(wait_seconds, at_seconds - began_seconds), charged_before)
        self.charge(COMPUTE, at_seconds - began_seconds, charged_before)
        del self._open[id(entry)]

    def charge(self, part: int, seconds: float, charged_before: float) -> None:
        """Charges what took so long, but for what was charged since `charged_before` was read."""
        rest = seconds - (self.charged_seconds - charged_before)
        if rest > 0.0:
            self._seconds[part] += rest
            self.charged_seconds += rest

    def is_background(self) -> bool:
        """Whether the script does not wait for what this thread does."""
        return bool(self.background) and get_ident() in self.background

    def so_far(self) -> StepTimeParts:
        """The times of this moment, what lasts included: together the time since the clock began, and no part falls.

        While a part lasts it is not known how its time will be charged, as what of a collective was waiting. Who has
        been told more of a part than it came to is told nothing more of it until that is so.
        """
        with self._lock:
            now = self._clock()
            seconds, since = self._of_moment(now)
            told = self._told_seconds = _limit_growth(self._told_seconds, seconds, now - self._began_seconds)
        return StepTimeParts(
            host_seconds=told[5],
            compile_wait_seconds=told[COMPILE],
            input_wait_seconds=told[INPUT] or None,
            transfer_seconds=told[TRANSFER],
            compute_seconds=told[COMPUTE],
            collective_wait_seconds=told[COLLECTIVE],
            compiling_since_seconds=since.get(COMPILE),
            collective_since_seconds=since.get(COLLECTIVE),
        )

    def at_boundary(self) -> tuple[float, tuple[float, ...]]:
        """This moment of perf_counter, and the seconds charged to each part by then, as is known now.

        For who compares two moments between steps, where hardly anything lasts: what `so_far` owes of a part from
        before is in none of them. A part that lasted at the one may have come to less by the other.
        """
        now = self._clock()
        return now, tuple(self._of_moment(now)[0][:-1])

    def _of_moment(self, now: float) -> tuple[list[float], dict[int, float]]:
        """What is charged by now, the host's time last, and since when what lasts; others may charge meanwhile."""
        lasting = self._open.copy()  # first: what ends meanwhile is then found charged, and not nowhere
        seconds = self._seconds.copy()
        charged = sum(seconds)
        since: dict[int, float] = {}
        for part, began_seconds, charged_before in sorted(lasting.values(), key=_began, reverse=True):
            rest = now - began_seconds - (charged - charged_before)
            if rest > 0.0:
                seconds[part] += rest
                charged += rest
            since[part] = began_seconds + _MONOTONIC_SECONDS  # the last one began first
        return [*seconds, now - self._began_seconds - charged], since

    def renew_lock(self) -> None:
        """For a forked child: a thread that it has not may hold the other."""
        self._lock = Lock()


def _limit_growth(before: list[float], now: list[float], whole_seconds: float) -> list[float]:
    """As near to the parts of now as they come without any that falls, and with this sum."""
    passed_seconds = max(0.0, whole_seconds - sum(before))
    missing = [max(0.0, part - told) for told, part in zip(before, now, strict=True)]
    share = min(1.0, passed_seconds / (sum(missing) or 1.0))
    return [told + share * more for told, more in zip(before, missing, strict=True)]


def _began(entry: Entry) -> float:
    return entry[1]


step_clock = StepClock()
os.register_at_fork(after_in_child=step_clock.renew_lock)
