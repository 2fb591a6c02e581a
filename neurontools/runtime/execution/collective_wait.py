"""What part of a collective was waiting for the other ranks, and not moving and reducing.

gloo does not tell. So every so often the ranks meet right before a collective: until they have met is waiting, and what
the collective takes then is its own work. A collective without a meeting waited as long as it took longer than that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import torch

from neurontools.runtime.execution.deadline import deadline

_PERIOD = 61  # a prime: among the collectives of a step each has its turn
_LATEST = 5  # meetings by whose median the work is known, so that a moment of a busy machine is not
_PAIRWISE = frozenset({"send", "receive", "permute"})  # not all ranks of the group take part

Key = tuple[str, int, int]
"""A kind, the number of a group, and the bit length of the bytes."""


class CollectiveWait:
    """Tells the waits of the collectives of this process, whose ranks all carry out the same ones in one order."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}
        self._met_seconds: dict[Key, deque[float]] = {}
        self._work_seconds: dict[Key, float] = {}

    def carry_out(self, kind: str, number: int, group: Any, nbytes: int, work: Callable[[], None]) -> float:
        """Carries out one collective; how long it waited, in seconds. Raises what `work` raises."""
        count = self._counts.get((kind, number), 0)
        self._counts[kind, number] = count + 1
        began = time.perf_counter()
        meets = kind not in _PAIRWISE and (not count % _PERIOD or not count & (count - 1))
        if meets:
            deadline.wait(group, group.allreduce([torch.zeros(1)]))
        met = time.perf_counter()
        work()
        ended = time.perf_counter()
        key = (kind, number, nbytes.bit_length())
        known = self._work_seconds.get(key)
        seconds = ended - met
        if meets:
            latest = self._met_seconds.setdefault(key, deque(maxlen=_LATEST))
            latest.append(seconds)
            self._work_seconds[key] = sorted(latest)[len(latest) // 2]
            return met - began
        if kind in _PAIRWISE:
            # Nobody can say when the other began: the shortest so far stands for one without waiting.
            known = self._work_seconds[key] = seconds if known is None else min(known, seconds)
        elif known is None:
            known = self._like(kind, number, nbytes)
        return max(0.0, seconds - known)

    def _like(self, kind: str, number: int, nbytes: int) -> float:
        """The work of one of this size, by the nearest size that is known: as much for fewer bytes, in proportion for
        more.
        """
        bits = nbytes.bit_length()
        sizes = [key[2] for key in self._work_seconds if key[:2] == (kind, number)]
        if not sizes:
            return inf  # the first one failed
        nearest = min(sizes, key=lambda size: abs(size - bits))
        return self._work_seconds[kind, number, nearest] * 2.0 ** max(0, bits - nearest)


waits = CollectiveWait()
