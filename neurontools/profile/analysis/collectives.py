"""Collectives: how long they took on each rank, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neurontools.profile import Engine, Kind, Profile
from neurontools.profile.analysis.operators import executed
from neurontools.profile.analysis.steps import NS_PER_SECOND

_LEAST_WAIT_RATIO = 0.1  # of the time that the others wait more: from there on they wait for somebody


@dataclass(slots=True)
class CollectiveUse:
    """One kind of collective; times include the wait for other ranks."""

    name: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    seconds_by_rank: list[float] = field(default_factory=list)  # in the order of the report's ranks


def collective_uses(profiles: Sequence[Profile]) -> tuple[CollectiveUse, ...]:
    """Those of graphs and those of CPU tensors, the longest first."""
    found: dict[str, CollectiveUse] = {}
    for number, profile in enumerate(profiles):
        told = [
            (operator.name, count, total_ns, count * operator.bytes)
            for operator, count, total_ns, _ in executed(profile)
            if operator.engine is Engine.COLLECTIVES
        ]
        told += [
            (profile.names[row.name], row.spans, row.total_ns, row.bytes)
            for row in profile.span_totals
            if row.kind == Kind.COLLECTIVE
        ]
        for name, count, total_ns, size in told:
            use = found.setdefault(name, CollectiveUse(name, seconds_by_rank=[0.0] * len(profiles)))
            use.count += count
            use.seconds += total_ns / NS_PER_SECOND
            use.bytes += max(0, size)
            use.seconds_by_rank[number] += total_ns / NS_PER_SECOND
    return tuple(sorted(found.values(), key=lambda use: (-use.seconds, use.name)))


def waited_for(ratios: Sequence[float | None]) -> int | None:
    """Of ranks with these shares of their time in collectives, the place of the one whom the others wait for.

    That is the one that waits least, if the others wait clearly more; None where nobody is clearly slower.
    """
    known = [(ratio, place) for place, ratio in enumerate(ratios) if ratio is not None]
    if len(known) < 2 or len(known) < len(ratios):
        return None
    (least, place), *others = sorted(known)
    middle = others[len(others) // 2][0]
    return place if middle - least >= _LEAST_WAIT_RATIO else None
