"""Reads vCPU, memory, network, disk and EFA metrics of the host that the daemon runs on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import psutil

from neurontools.driver.sysfs_files import parse_count, read_bytes, read_text, read_whole_file
from neurontools.model import Disk, Host, NetworkInterface, RdmaPort, VcpuTimes, host
from neurontools.util.units import sum_known

# Fields of /proc/stat in the order of VcpuTimes. Omits guest time, which is part of user time, and steal time.
_read_states = attrgetter("user", "nice", "system", "idle", "iowait", "irq", "softirq")

_SWAP_SECONDS = 4.5


class HostReader:
    """Reads the host's metrics. Ratios and rates cover the time since the previous read; the first read has none.

    `sys` and `proc` are where sysfs and procfs are mounted, for network, disks and EFA devices.
    """

    def __init__(self, sys: str = "/sys", proc: str = "/proc") -> None:
        self._traffic = TrafficReader(sys, proc)
        self._rdma = RdmaReader(sys)
        self._swap: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._before: tuple[VcpuTimes, ...] = ()

    def read(self) -> tuple[Host, tuple[str, ...]]:
        """Returns the host's metrics, and a warning for each reason why parts can't be read."""
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
        # `usage` is None at the first read, after a change of the vCPUs, or if no counter has changed.
        usage = host.vcpu_usage_between(now, before)
        if usage is not None:
            values["vcpu_average"], _ = usage
        return values

    def _read_swap(self) -> dict[str, int]:
        """Reads swap only every few seconds: swap changes slowly, and reading it costs more than the other metrics."""
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


RDMA_READ_SECONDS = 5.0
_MOST_PORTS = 64
_SEARCH_SECONDS = 60.0  # seconds between searches for RDMA devices on a host that has none
_STALE_SECONDS = 3 * RDMA_READ_SECONDS
_MAX_NAME_CHARACTERS = 64

# Files of the EFA driver, below hw_counters, whose sum is each field of RdmaPort, by field name.
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
    """Reads RDMA ports below `sys` every few seconds, in a thread that starts once there are ports."""

    def __init__(self, sys: str = "/sys") -> None:
        self._directory = f"{sys}/class/infiniband"
        self._latest: tuple[float, tuple[RdmaPort, ...]] = (0.0, ())
        self._searched_at_seconds = -_SEARCH_SECONDS
        self._thread: threading.Thread | None = None

    def read(self, now_seconds: float) -> tuple[RdmaPort, ...]:
        """Returns the latest RDMA ports, sorted; () if they are older than 15 s. `now_seconds` is CLOCK_MONOTONIC."""
        if self._thread is None:
            if now_seconds - self._searched_at_seconds >= _SEARCH_SECONDS:
                self._searched_at_seconds = now_seconds
                if port_paths(self._directory):
                    self._thread = threading.Thread(target=self._work, name="rdma", daemon=True)
                    self._thread.start()
            return ()
        read_at_seconds, ports = self._latest
        return ports if now_seconds - read_at_seconds <= _STALE_SECONDS else ()

    def _work(self) -> None:
        while True:
            ports = read_ports(self._directory)
            now_seconds = time.monotonic()
            before_seconds, before = self._latest
            self._latest = now_seconds, with_rates(ports, before, now_seconds - before_seconds)
            time.sleep(RDMA_READ_SECONDS)


def port_paths(directory: str) -> list[tuple[str, int, str]]:
    """Returns device, port number and directory of each RDMA port, sorted."""
    found = []
    for device in _names(directory):
        ports = f"{directory}/{device}/ports"
        found += [(device, int(name), f"{ports}/{name}") for name in _names(ports) if name.isdigit() and len(name) < 5]
    return sorted(found)[:_MOST_PORTS]


def read_ports(directory: str) -> tuple[RdmaPort, ...]:
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
    """Adds bytes per second since `before` to each RDMA port; None for new ports and reset counters."""
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


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:_MOST_PORTS]  # noqa: PTH208
    except OSError:
        return []


def _sum(directory: str, files: tuple[str, ...]) -> int | None:
    return sum_known(_count(f"{directory}/{name}") for name in files)


def _count(path: str) -> int | None:
    try:
        count = parse_count(read_bytes(path))
    except OSError:
        return None
    return count if count is None or count < 2**63 else None


def _state(text: str | None) -> str | None:
    """Returns the name of a port's state without its number, such as "ACTIVE" for "4: ACTIVE"."""
    word = (text or "").rpartition(":")[2].strip()
    return word[:_MAX_NAME_CHARACTERS] or None


TRAFFIC_READ_SECONDS = 5.0
MOST_SHOWN = 32
_MAX_BYTES = 2**20
_SECTOR_BYTES = 512  # sectors in /proc/diskstats have this size on every disk
_READS_BETWEEN_SCANS = 15  # reads between two scans for changed hardware; a changed number of lines causes a scan
_MOST = 2**54  # largest accepted number of sectors, so that their bytes fit the protobuf field

_Pair = tuple[int, int]  # byte counters: received and sent, or read and written
_Rates = tuple[float | None, float | None]
_Parse = Callable[[list[bytes], frozenset[bytes] | None], dict[bytes, _Pair]]


class TrafficReader:
    """Reads counters of network interfaces and disks, at most once per TRAFFIC_READ_SECONDS."""

    def __init__(self, sys: str = "/sys", proc: str = "/proc") -> None:
        # /proc/net shows the reader's network namespace. In the host's procfs, PID 1 has the host's namespace.
        network = ("/proc/net/dev",) if proc == "/proc" else (f"{proc}/1/net/dev", f"{proc}/net/dev")
        self._network = _CounterFile(network, f"{sys}/class/net", is_all_without=True)
        self._disks = _CounterFile((f"{proc}/diskstats",), f"{sys}/block", is_all_without=False)
        self._read_at_seconds = float("-inf")
        self._latest: tuple[tuple[NetworkInterface, ...], tuple[Disk, ...]] = ((), ())

    def read(self, now_seconds: float) -> tuple[tuple[NetworkInterface, ...], tuple[Disk, ...]]:
        """Returns network interfaces and disks; () if the file is missing. Raises OSError if a file is unreadable."""
        seconds = now_seconds - self._read_at_seconds
        # The factor 0.9 tolerates a tick that comes a little early.
        if seconds < 0.9 * TRAFFIC_READ_SECONDS:
            return self._latest
        self._read_at_seconds = now_seconds
        interfaces = [
            NetworkInterface(name, *counts, *rates)
            for name, counts, rates in self._network.read(interface_counts, seconds)
        ]
        disks = [Disk(name, *counts, *rates) for name, counts, rates in self._disks.read(disk_counts, seconds)]
        self._latest = tuple(interfaces), tuple(disks)
        return self._latest


class _CounterFile:
    """Reads the counters of a file. Omits bridges and partitions, because their traffic would count twice."""

    def __init__(self, paths: tuple[str, ...], directory: str, *, is_all_without: bool) -> None:
        self._paths = paths
        self._directory = Path(directory)
        self._is_all_without = is_all_without
        self._names: frozenset[bytes] | None = None
        self._line_count = 0
        self._reads = 0
        self._before: dict[bytes, _Pair] = {}

    def read(self, parse: _Parse, seconds: float) -> list[tuple[str, _Pair, _Rates]]:
        """Returns, for each interface or disk, its name, its counters, and their rates since the previous read."""
        lines = _content(self._paths).split(b"\n")
        if self._reads % _READS_BETWEEN_SCANS == 0 or len(lines) != self._line_count:
            self._reads, self._line_count = 0, len(lines)
            self._names = self._hardware(parse(lines, None))
        self._reads += 1
        before, self._before = self._before, parse(lines, self._names)
        found = []
        for name in sorted(self._before)[:MOST_SHOWN]:
            now = self._before[name]
            then = before.get(name)
            rates = (None, None) if then is None else (_rate(then[0], now[0], seconds), _rate(then[1], now[1], seconds))
            found.append((name.decode("ascii", "replace")[:_MAX_NAME_CHARACTERS], now, rates))
        return found

    def _hardware(self, names: dict[bytes, _Pair]) -> frozenset[bytes]:
        decoded = {name: name.decode("ascii", "replace") for name in names}
        safe = {name for name, text in decoded.items() if "/" not in text and text not in ("", ".", "..", "lo")}
        found = frozenset(name for name in safe if (self._directory / decoded[name] / "device").exists())
        return found or (frozenset(safe) if self._is_all_without else found)


def interface_counts(lines: list[bytes], names: frozenset[bytes] | None) -> dict[bytes, _Pair]:
    """Parses received and sent bytes per interface from lines of /proc/net/dev. `names` None: all interfaces."""
    counts: dict[bytes, _Pair] = {}
    for line in lines:
        name, _, rest = line.partition(b":")
        name = name.strip()
        if names is None or name in names:
            fields = rest.split(None, 9)
            if len(fields) >= 9:
                _put(counts, name, fields[0], fields[8], 1)
    return counts


def disk_counts(lines: list[bytes], names: frozenset[bytes] | None) -> dict[bytes, _Pair]:
    """Parses read and written bytes per disk from lines of /proc/diskstats. `names` None: all disks."""
    counts: dict[bytes, _Pair] = {}
    for line in lines:
        fields = line.split(None, 10)
        if len(fields) >= 10 and (names is None or fields[2] in names):
            _put(counts, fields[2], fields[5], fields[9], _SECTOR_BYTES)
    return counts


def _put(counts: dict[bytes, _Pair], name: bytes, first: bytes, second: bytes, unit_bytes: int) -> None:
    if first.isdigit() and second.isdigit():
        counts[name] = min(int(first[:20]), _MOST) * unit_bytes, min(int(second[:20]), _MOST) * unit_bytes


def _rate(before: int, now: int, seconds: float) -> float | None:
    return (now - before) / seconds if now >= before else None


def _content(paths: tuple[str, ...]) -> bytes:
    for path in paths:
        try:
            return read_whole_file(path, _MAX_BYTES)
        except FileNotFoundError:
            continue
    return b""
