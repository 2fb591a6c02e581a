"""What a process has used of its cores since it is counted."""

from __future__ import annotations

from dataclasses import dataclass

from neurond.ownership.holding import Holding


@dataclass(frozen=True, slots=True)
class Use:
    """`busy_seconds_total` is summed over its logical cores. None: not known."""

    busy_seconds_total: float | None = None
    flop_total: int | None = None
    peak_device_memory_bytes: int | None = None


def reported_use(holding: Holding) -> Use:
    """What an attached process has told of itself, in its own count."""
    if not holding.cores:
        return Use()
    return Use(
        sum(core.busy_seconds_total for core in holding.cores.values()),
        sum(core.flop_total for core in holding.cores.values()),
        holding.peak_device_memory_bytes,
    )
