"""vCPUs and memory of the machine the daemon runs on."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import psutil

from neurontools.model import Host, VcpuTimes, vcpu_time

# Fields of /proc/stat in the order of VcpuTimes. Left out: guest time, which user has already, and steal, nobody's use.
_read_states = attrgetter("user", "nice", "system", "idle", "iowait", "irq", "softirq")


class HostReader:
    """Reads the host. Shares of vCPU time are over the time since the read before; the first read has none."""

    def __init__(self) -> None:
        self._before: tuple[VcpuTimes, ...] = ()

    def read(self) -> tuple[Host, tuple[str, ...]]:
        """The host now, and a warning for each reason why parts of it could not be read."""
        values: dict[str, Any] = {}
        unread: dict[str, list[str]] = {}
        for name, part in (("vCPU usage", self._vcpus), ("memory", _memory), ("swap", _swap)):
            try:
                values |= part()
            except (OSError, RuntimeError, psutil.Error) as error:
                unread.setdefault(getattr(error, "strerror", None) or str(error), []).append(name)
        warnings = (f"{', '.join(names)} of the host can't be read: {cause}" for cause, names in unread.items())
        return Host(**values), tuple(warnings)

    def _vcpus(self) -> dict[str, Any]:
        now = tuple(VcpuTimes(*_read_states(times)) for times in psutil.cpu_times(percpu=True))
        before, self._before = self._before, now
        values: dict[str, Any] = {
            "vcpu_count": len(now),
            "vcpu_times": now,
            "context_switches_total": psutil.cpu_stats().ctx_switches,
        }
        # None: the first read, a vCPU came or went, or the clock of the kernel has not moved.
        usage = vcpu_time.difference(now, before)
        if usage is not None:
            values["vcpu_average"], _ = usage
        return values


def _memory() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {"memory_total_bytes": memory.total, "memory_used_bytes": memory.total - memory.available}


def _swap() -> dict[str, int]:
    swap = psutil.swap_memory()
    return {"swap_total_bytes": swap.total, "swap_used_bytes": swap.used}
