"""vCPUs and memory of the machine the daemon runs on."""

from __future__ import annotations

from typing import Any

import psutil

from neurontools.model import Host, VcpuUsage

# Fields of /proc/stat in the order of VcpuUsage. Left out: guest time, which user has already, and steal, nobody's use.
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")


class HostReader:
    """Reads the host. Shares of vCPU time are over the time since the read before; the first read has none."""

    def __init__(self) -> None:
        self._before: list[tuple[float, ...]] = []

    def read(self) -> tuple[Host, tuple[str, ...]]:
        """The host now, and a warning for each part that could not be read."""
        values: dict[str, Any] = {}
        warnings = []
        for name, part in (("vCPU usage", self._vcpus), ("memory", _memory), ("swap", _swap)):
            try:
                values |= part()
            except (OSError, RuntimeError, psutil.Error) as error:
                warnings.append(f"{name} of the host can't be read: {error}")
        return Host(**values), tuple(warnings)

    def _vcpus(self) -> dict[str, Any]:
        now = [tuple(getattr(times, state) for state in _STATES) for times in psutil.cpu_times(percpu=True)]
        before, self._before = self._before, now
        values: dict[str, Any] = {"vcpu_count": len(now), "context_switches_total": psutil.cpu_stats().ctx_switches}
        if len(before) != len(now):  # the first read, or a vCPU came or went
            return values
        spent = [
            tuple(max(0.0, later - earlier) for earlier, later in zip(old, new, strict=True))
            for old, new in zip(before, now, strict=True)
        ]
        average = _usage([sum(column) for column in zip(*spent, strict=True)])
        if average is not None:  # None: read again before the clock of the kernel moved
            values["vcpu_average"] = average
            values["vcpus"] = tuple(_usage(times) or average for times in spent)
        return values


def _usage(seconds: list[float] | tuple[float, ...]) -> VcpuUsage | None:
    total = sum(seconds)
    return VcpuUsage(*(state / total for state in seconds)) if total > 0 else None


def _memory() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {"memory_total_bytes": memory.total, "memory_used_bytes": memory.total - memory.available}


def _swap() -> dict[str, int]:
    swap = psutil.swap_memory()
    return {"swap_total_bytes": swap.total, "swap_used_bytes": swap.used}
