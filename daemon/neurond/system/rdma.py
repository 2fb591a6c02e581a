"""Ports of RDMA devices, which EFA devices are, from /sys/class/infiniband.

Their driver asks the device for its counters, which takes a while and may hang: they are read in a thread of their own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from neurontools.driver.sysfs_files import parse_count, read_bytes, read_text
from neurontools.model import RdmaPort

READ_SECONDS = 5.0
_MOST_PORTS = 64
_LOOK_SECONDS = 60.0  # where there was no such device: how often one is looked for
_OLD_SECONDS = 3 * READ_SECONDS
_MAX_NAME_CHARACTERS = 64

# Fields of RdmaPort, and files of hw_counters as the driver of EFA has them; several are added.
_COUNTERS = {
    "received_bytes_total": ("rx_bytes",),
    "sent_bytes_total": ("tx_bytes",),
    "rdma_read_bytes_total": ("rdma_read_bytes",),
    "rdma_write_bytes_total": ("rdma_write_bytes",),
    "dropped_packets_total": ("rx_drops",),
    "retransmitted_bytes_total": ("retrans_bytes",),
    "retransmit_timeouts_total": ("retrans_timeout_events",),
    "unresponsive_remotes_total": ("unresponsive_remote_events",),
    "failed_requests_total": ("rdma_read_wr_err", "rdma_write_wr_err"),
}


class RdmaReader:
    """The ports under `sys`, as of a few seconds ago. Nothing is started while there are none."""

    def __init__(self, sys: str = "/sys") -> None:
        self._directory = f"{sys}/class/infiniband"
        self._latest: tuple[float, tuple[RdmaPort, ...]] = (0.0, ())
        self._looked_at_seconds = -_LOOK_SECONDS
        self._thread: threading.Thread | None = None

    def read(self, now_seconds: float) -> tuple[RdmaPort, ...]:
        """The ports by device and number, at CLOCK_MONOTONIC; none when the devices have not answered for long."""
        if self._thread is None:
            if now_seconds - self._looked_at_seconds >= _LOOK_SECONDS:
                self._looked_at_seconds = now_seconds
                if port_paths(self._directory):
                    self._thread = threading.Thread(target=self._work, name="rdma", daemon=True)
                    self._thread.start()
            return ()
        read_at_seconds, ports = self._latest
        return ports if now_seconds - read_at_seconds <= _OLD_SECONDS else ()

    def _work(self) -> None:
        while True:
            ports = read_ports(self._directory)
            now_seconds = time.monotonic()
            before_seconds, before = self._latest
            self._latest = now_seconds, with_rates(ports, before, now_seconds - before_seconds)
            time.sleep(READ_SECONDS)


def port_paths(directory: str) -> list[tuple[str, int, str]]:
    """Device, number and directory of each port, in this order."""
    found = []
    for device in _names(directory):
        ports = f"{directory}/{device}/ports"
        found += [(device, int(name), f"{ports}/{name}") for name in _names(ports) if name.isdigit() and len(name) < 5]
    return sorted(found)[:_MOST_PORTS]


def read_ports(directory: str) -> tuple[RdmaPort, ...]:
    """The ports with their counters; what can't be read is None."""
    return tuple(
        RdmaPort(
            device[:_MAX_NAME_CHARACTERS],
            port,
            _state(read_text(f"{path}/state")),
            **{name: _sum(f"{path}/hw_counters", files) for name, files in _COUNTERS.items()},
        )
        for device, port, path in port_paths(directory)
    )


def with_rates(now: tuple[RdmaPort, ...], before: tuple[RdmaPort, ...], passed_seconds: float) -> tuple[RdmaPort, ...]:
    """With the bytes a second since `before`; unknown of what is new, and of counters that fell."""
    earlier = {(port.device, port.port): port for port in before}

    def rate(port: RdmaPort, name: str) -> float | None:
        then = earlier.get((port.device, port.port))
        first, last = getattr(then, name, None), getattr(port, name)
        if first is None or last is None or last < first or passed_seconds <= 0:
            return None
        return float(last - first) / passed_seconds

    return tuple(
        replace(
            port,
            received_bytes_per_second=rate(port, "received_bytes_total"),
            sent_bytes_per_second=rate(port, "sent_bytes_total"),
        )
        for port in now
    )


def _names(directory: str) -> Iterator[str]:
    try:
        return iter(sorted(os.listdir(directory))[:_MOST_PORTS])  # noqa: PTH208
    except OSError:
        return iter(())


def _sum(directory: str, files: tuple[str, ...]) -> int | None:
    known = [count for name in files if (count := _count(f"{directory}/{name}")) is not None]
    return sum(known) if known else None


def _count(path: str) -> int | None:
    try:
        count = parse_count(read_bytes(path))
    except OSError:
        return None
    return count if count is None or count < 2**63 else None


def _state(text: str | None) -> str | None:
    """The word behind the number: "4: ACTIVE"."""
    word = (text or "").rpartition(":")[2].strip()
    return word[:_MAX_NAME_CHARACTERS] or None
