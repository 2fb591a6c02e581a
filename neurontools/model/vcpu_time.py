"""How vCPU time was spent between two states of its counters: shares of each vCPU, and of all together."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from neurontools.model.host import VcpuTimes, VcpuUsage

_seconds = attrgetter(*VcpuTimes.__slots__)


def difference(
    later: Sequence[VcpuTimes], earlier: Sequence[VcpuTimes]
) -> tuple[VcpuUsage, tuple[VcpuUsage, ...]] | None:
    """The average of all vCPUs, and each vCPU by index, from `earlier` to `later`.

    A vCPU whose clocks stood still gets the average. None when nothing can be told: times are unknown, no time has
    passed, or a vCPU came or went in between.
    """
    if len(later) != len(earlier):
        return None
    spent = [
        # The kernel's idle and io_wait clocks may step back a little.
        [max(0.0, after - before) for after, before in zip(_seconds(now), _seconds(then), strict=True)]
        for now, then in zip(later, earlier, strict=True)
    ]
    average = _usage([sum(state) for state in zip(*spent, strict=True)])
    if average is None:
        return None
    return average, tuple(_usage(vcpu) or average for vcpu in spent)


def _usage(seconds: list[float]) -> VcpuUsage | None:
    total = sum(seconds)
    return VcpuUsage(*(state / total for state in seconds)) if total > 0 else None
