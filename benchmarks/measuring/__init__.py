"""Shared parts of the benchmarks: a daemon to measure, the cost of a process, and printed results."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil


@dataclass(frozen=True)
class Figure:
    """One measured figure; `limit` is its limit as text, if any."""

    name: str
    value: float
    unit: str
    limit: str = ""


@dataclass(frozen=True)
class Daemon:
    """A running neurond."""

    socket: str
    process: psutil.Process


@contextlib.contextmanager
def daemon(*flags: str) -> Iterator[Daemon]:
    """Runs a neurond with these flags on a private socket."""
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/n.sock"
        ready, ready_end = os.pipe()
        child = subprocess.Popen(
            # Without --exit-with-parent, because such a daemon keeps the memory of its start.
            [sys.executable, "-m", "neurond", "--socket", socket, "--ready-fd", str(ready_end), "--log-level", "error",
             *flags],
            pass_fds=[ready_end],
        )  # fmt: skip
        os.close(ready_end)
        try:
            if not os.read(ready, 16):
                raise SystemExit("the daemon did not start")
            yield Daemon(socket, psutil.Process(child.pid))
        finally:
            os.close(ready)
            child.terminate()
            child.wait()


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the vCPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def core_share_percent(process: psutil.Process, seconds: float) -> float:
    """Returns the percentage of one vCPU that a process uses over the next `seconds`."""
    before, started = cpu_seconds(process), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(process) - before) / (time.monotonic() - started)


def resident_mib(process: psutil.Process) -> float:
    """Returns the resident memory of a process in MiB."""
    return float(process.memory_info().rss) / 2**20


def interleaved_medians_ms(commands: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median time of each command. They run in turns, so a slow moment hits all."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            command()
            if number:  # the first round warms up
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: median(values) for name, values in times.items()}


def installed(command: str) -> str:
    """Returns the path of a command in this Python environment."""
    return str(Path(sys.executable).with_name(command))


def compile_sources() -> None:
    """Writes the bytecode of the checkout, as installing a wheel does, even with PYTHONDONTWRITEBYTECODE."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", "compileall", "-q", root / "neurontools", root / "daemon"], check=True)


def report(title: str, figures: Sequence[Figure]) -> None:
    """Prints the figures as a table, or as JSON with --json."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print JSON")
    if parser.parse_known_args()[0].json:  # a benchmark may have arguments of its own
        print(json.dumps({figure.name: {"value": figure.value, "unit": figure.unit} for figure in figures}))
        return
    print(title)
    for figure in figures:
        print(f"  {figure.name:<58} {figure.value:>9.3g} {figure.unit:<10} {figure.limit}".rstrip())
