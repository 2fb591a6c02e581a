"""vCPUs, memory, network and disks of the machine the daemon runs on."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

import psutil

from neurond.system.rdma import RdmaReader
from neurond.system.traffic import Traffic
from neurontools.model import Host, VcpuTimes, vcpu_time

# Fields of /proc/stat in the order of VcpuTimes. Left out: guest time, which user has already, and steal, nobody's use.
_read_states = attrgetter("user", "nice", "system", "idle", "iowait", "irq", "softirq")

_SWAP_SECONDS = 4.5


class HostReader:
    """Reads the host. Shares and rates are over the time since the read before; the first read has none.

    `sys` and `proc` are where network, disks and EFA devices are read.
    """

    def __init__(self, sys: str = "/sys", proc: str = "/proc") -> None:
        self._traffic = Traffic(sys, proc)
        self._rdma = RdmaReader(sys)
        self._swap: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._before: tuple[VcpuTimes, ...] = ()

    def read(self) -> tuple[Host, tuple[str, ...]]:
        """The host now, and a warning for each reason why parts of it could not be read."""
        values: dict[str, Any] = {}
        unread: dict[str, list[str]] = {}
        for name, part in (
            ("vCPU usage", self._vcpus),
            ("memory", _memory),
            ("swap", self._read_swap),
            ("network and disks", self._read_traffic),
        ):
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

    def _read_swap(self) -> dict[str, int]:
        """Every few seconds: it changes slowly, and costs more to read than all else here."""
        now_seconds = time.monotonic()
        if now_seconds - self._swap[0] >= _SWAP_SECONDS:
            self._swap = now_seconds, _swap()
        return self._swap[1]

    def _read_traffic(self) -> dict[str, Any]:
        now_seconds = time.monotonic()
        interfaces, disks = self._traffic.read(now_seconds)
        return {"network_interfaces": interfaces, "disks": disks, "rdma_ports": self._rdma.read(now_seconds)}


def _memory() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {"memory_total_bytes": memory.total, "memory_used_bytes": memory.total - memory.available}


def _swap() -> dict[str, int]:
    swap = psutil.swap_memory()
    return {"swap_total_bytes": swap.total, "swap_used_bytes": swap.used}
