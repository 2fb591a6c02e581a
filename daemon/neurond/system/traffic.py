"""What goes through the host's network interfaces and disks, from /proc/net/dev and /proc/diskstats.

Only what is hardware counts where anything is: bridges, pairs and partitions would count the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from neurontools.driver.sysfs_files import read_whole_file
from neurontools.model import Disk, NetworkInterface

READ_SECONDS = 5.0
MOST_SHOWN = 32
_MAX_BYTES = 2**20
_MAX_NAME_CHARACTERS = 64
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk has
_READS_BETWEEN_LOOKS = 15  # for other hardware, where the number of lines doesn't tell
_MOST = 2**54  # in sectors it fits the messages

_Pair = tuple[int, int]  # in and out, or read and written
_Rates = tuple[float | None, float | None]
_Parse = Callable[[list[bytes], frozenset[bytes] | None], dict[bytes, _Pair]]


class Traffic:
    """Reads interfaces and disks, at most every READ_SECONDS; rates are between two reads. `sys` and `proc`: where."""

    def __init__(self, sys: str = "/sys", proc: str = "/proc") -> None:
        # /proc/net is of the reader's network; where the host's /proc is elsewhere, the host's first process has its.
        network = ("/proc/net/dev",) if proc == "/proc" else (f"{proc}/1/net/dev", f"{proc}/net/dev")
        self._network = _Counted(network, f"{sys}/class/net", is_all_without=True)
        self._disks = _Counted((f"{proc}/diskstats",), f"{sys}/block", is_all_without=False)
        self._read_at_seconds = float("-inf")
        self._latest: tuple[tuple[NetworkInterface, ...], tuple[Disk, ...]] = ((), ())

    def read(self, now_seconds: float) -> tuple[tuple[NetworkInterface, ...], tuple[Disk, ...]]:
        """Interfaces and disks at CLOCK_MONOTONIC; none where there are no such files. OSError otherwise."""
        seconds = now_seconds - self._read_at_seconds
        # A tick that comes a little early is one too.
        if seconds < 0.9 * READ_SECONDS:
            return self._latest
        self._read_at_seconds = now_seconds
        interfaces = [
            NetworkInterface(name, *counts, *rates)
            for name, counts, rates in self._network.read(interface_counts, seconds)
        ]
        disks = [Disk(name, *counts, *rates) for name, counts, rates in self._disks.read(disk_counts, seconds)]
        self._latest = tuple(interfaces), tuple(disks)
        return self._latest


class _Counted:
    """The counters of one file, of those names that are hardware: that have a device behind them."""

    def __init__(self, paths: tuple[str, ...], directory: str, *, is_all_without: bool) -> None:
        self._paths = paths
        self._directory = Path(directory)
        self._is_all_without = is_all_without
        self._names: frozenset[bytes] | None = None
        self._line_count = 0
        self._reads = 0
        self._before: dict[bytes, _Pair] = {}

    def read(self, parse: _Parse, seconds: float) -> list[tuple[str, _Pair, _Rates]]:
        """By name: what was counted, and how much of it a second since the read before."""
        lines = _content(self._paths).split(b"\n")
        if self._reads % _READS_BETWEEN_LOOKS == 0 or len(lines) != self._line_count:
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
        known = {name: name.decode("ascii", "replace") for name in names}
        safe = {name for name, text in known.items() if "/" not in text and text not in ("", ".", "..", "lo")}
        found = frozenset(name for name in safe if (self._directory / known[name] / "device").exists())
        return found or (frozenset(safe) if self._is_all_without else found)


def interface_counts(lines: list[bytes], names: frozenset[bytes] | None) -> dict[bytes, _Pair]:
    """Bytes received and sent by interface, of lines of /proc/net/dev; of these names, or of all."""
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
    """Bytes read and written by disk, of lines of /proc/diskstats; of these names, or of all."""
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
    """Growth a second; None where the counter fell: it began anew."""
    return (now - before) / seconds if now >= before else None


def _content(paths: tuple[str, ...]) -> bytes:
    for path in paths:
        try:
            return read_whole_file(path, _MAX_BYTES)
        except FileNotFoundError:
            continue
    return b""
