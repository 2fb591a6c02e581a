"""Measures neuron-top with many hosts, from outside, beside neuron-top with one of them.

    python benchmarks/fleet_view.py [--hosts 200] [--seconds 30]

Simulated hosts, each with its own socket, take snapshots at the interval of the view; 200 of them use more than half
a core themselves. The terminal of 200x50 gets no keys. The first complete frame is the one whose title says that all
hosts are live. CPU time is that of the viewer's process clock, memory its high-water mark. The size and cost of a
summary are means over the hosts.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neurontools.client import Client
from neurontools.fleet.feed import interval_for
from neurontools.fleet.hosts import HostAddress
from neurontools.fleet.summary import summarize_host
from neurontools.rpc.convert import to_message
from neurontools.testing import SimulatedFleet

ROOT = Path(__file__).parents[1]
COLUMNS, LINES, WARM_UP_SECONDS, PATIENCE_SECONDS = 200, 50, 5.0, 120.0
TIMES = 20


@dataclass(frozen=True)
class Cost:
    first_seconds: float
    cpu_ratio: float
    high_water_bytes: int


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


def viewed(arguments: Sequence[str], complete: bytes, seconds: float) -> Cost:
    """Measures neuron-top with these arguments; `complete` is a text that only a complete screen contains."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        pid, terminal = pty.fork()
        if not pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", XDG_CONFIG_HOME=home)
            os.execv(sys.executable, [sys.executable, str(ROOT / "scripts/neuron-top"), *arguments])
        try:
            said, first = b"", 0.0
            while not first:
                if time.monotonic() > started + PATIENCE_SECONDS:
                    raise SystemExit(f"not complete within {PATIENCE_SECONDS:.0f} s: {said[-300:]!r}")
                said += read(terminal, 0.1)
                if complete in said:
                    first = time.monotonic() - started
            drain(terminal, WARM_UP_SECONDS)
            before, at = cpu_seconds(pid), time.monotonic()
            drain(terminal, seconds)
            ratio = (cpu_seconds(pid) - before) / (time.monotonic() - at)
            status = Path(f"/proc/{pid}/status").read_text()
            return Cost(first, ratio, int(status.split("VmHWM:")[1].split()[0]) * 1024)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)


def read(terminal: int, seconds: float) -> bytes:
    if not select.select([terminal], [], [], seconds)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:
        raise SystemExit("neuron-top has ended") from None


def drain(terminal: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        read(terminal, left)


def summaries(places: Sequence[HostAddress]) -> tuple[float, float]:
    """Returns the size of a host's summary in bytes and its CPU seconds, as means over the hosts."""
    size = cpu = 0.0
    for place in places:
        with Client(place.address, timeout_seconds=PATIENCE_SECONDS) as client:
            snapshot = client.snapshot()
        summarize_host(snapshot, place.name)
        before = time.process_time()
        for _ in range(TIMES):
            message = to_message(summarize_host(snapshot, place.name)).SerializeToString()
        cpu += (time.process_time() - before) / TIMES
        size += len(message)
    return size / len(places), cpu / len(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    interval = interval_for(given.hosts)
    print(f"{given.hosts} hosts every {interval:g} s, {COLUMNS}x{LINES}, {given.seconds:g} s", flush=True)
    with SimulatedFleet(given.hosts, interval_seconds=interval, processes=os.cpu_count() or 1) as fleet:
        live = f"{given.hosts} hosts, {given.hosts} live".encode()
        many = viewed(["--hostfile", fleet.hostfile], live, given.seconds)
        tell(f"{given.hosts} hosts", many)
        size_bytes, make_seconds = summaries(fleet.places)
        cost = f"{make_seconds * 1e3:.2f} ms to make, {make_seconds / interval:.3%} of a core"
        print(f"{'a summary':>12}: {size_bytes:.0f} bytes, {cost}", flush=True)
        one = viewed(["--socket", fleet.places[0].address], b"NeuronCore v", given.seconds)
        tell("one host", one)
    print(f"{'ratio':>12}: {many.cpu_ratio / one.cpu_ratio:.2f} of the CPU time of one host")


def tell(name: str, cost: Cost) -> None:
    print(
        f"{name:>12}: complete after {cost.first_seconds:5.2f} s, {cost.cpu_ratio:6.2%} of a core, "
        f"{cost.high_water_bytes / 2**20:6.1f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
