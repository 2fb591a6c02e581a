"""Measures how long the daemon's event loop waits while a tree of 16 devices with 128 cores is read.

In the loop of a whole daemon with ten ticks a second, a task is due every millisecond. Its delay has three causes: the
loop makes and serves snapshots (its own vCPU time), other processes use the vCPU (the kernel's run delay), and the
reading thread holds the interpreter (at most the vCPU time it used). A second daemon with simulated idle devices shows
the delays without reading.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from measuring import Figure, compile_sources, report
from neurond.daemon import Daemon
from neurond.settings import Settings

from neurontools.testing import SimulatedDriver

INSTANCE_TYPE = "trn2.48xlarge"
WARM_UP_SECONDS, SECONDS = 2.0, float(os.environ.get("NEURONTOOLS_SECONDS", "30"))
INTERVAL_SECONDS, PROBE_SECONDS = 0.1, 0.001


@dataclass
class Waits:
    """The delay of each wake-up of the task, in milliseconds: total and by cause."""

    whole: list[float] = field(default_factory=list)
    by_reading: list[float] = field(default_factory=list)
    by_loop: list[float] = field(default_factory=list)
    by_machine: list[float] = field(default_factory=list)


def main() -> None:
    compile_sources()
    with tempfile.TemporaryDirectory() as directory, SimulatedDriver(INSTANCE_TYPE, scenario="steady") as driver:
        settings = partial(Settings, interval_seconds=INTERVAL_SECONDS, socket=f"{directory}/n.sock")
        roots = driver.roots
        reading = asyncio.run(
            _waits(settings(simulate=None, sysfs_root=roots.sys, proc_root=roots.proc, dev_root=roots.dev))
        )
        without = asyncio.run(_waits(settings(simulate=INSTANCE_TYPE)))
    report(
        f"The event loop's wait while {INSTANCE_TYPE} is read {1 / INTERVAL_SECONDS:.0f} times a second, "
        f"{len(reading.whole)} wakings",
        [
            *_figures("the reading thread has the interpreter", reading.by_reading, limit="at most 5"),
            *_figures("the loop makes and serves snapshots", reading.by_loop),
            *_figures("no vCPU, with reading", reading.by_machine),
            *_figures("no vCPU, without reading", without.by_machine),
            *_figures("late in all, with reading", reading.whole),
            *_figures("late in all, without reading", without.whole),
        ],
    )


def _figures(name: str, values: list[float], limit: str = "") -> list[Figure]:
    ordered = sorted(values)
    return [
        Figure(f"{name}, {text}", ordered[min(len(ordered) - 1, int(share * len(ordered)))], "ms", limit)
        for text, share in (("50 %", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("longest", 1.0))
    ]


async def _waits(settings: Settings) -> Waits:
    waits = Waits()
    serving = asyncio.create_task(Daemon(settings).run())
    await asyncio.sleep(WARM_UP_SECONDS)
    probing = asyncio.create_task(_probe(waits))
    await asyncio.sleep(SECONDS)
    probing.cancel()
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    return waits


async def _probe(waits: Waits) -> None:
    reader = next((thread for thread in threading.enumerate() if thread.name == "source"), None)
    clock = None if reader is None or reader.ident is None else time.pthread_getcpuclockid(reader.ident)

    schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def now() -> tuple[float, float, float, float]:
        """Returns, in milliseconds: clock, vCPU time of this thread and of the reader, run delay of this thread."""
        reader_seconds = 0.0 if clock is None else time.clock_gettime(clock)
        run_delay_ms = int(os.pread(schedule, 64, 0).split()[1]) / 1e6
        return 1e3 * time.perf_counter(), 1e3 * time.thread_time(), 1e3 * reader_seconds, run_delay_ms

    try:
        before = now()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            passed, by_loop, by_reader, by_machine = (b - a for a, b in zip(before, now(), strict=True))
            late = max(0.0, passed - 1e3 * PROBE_SECONDS)
            waits.whole.append(late)
            waits.by_loop.append(min(late, by_loop))
            waits.by_machine.append(min(late, by_machine))
            waits.by_reading.append(max(0.0, min(late - by_loop - by_machine, by_reader)))
            before = now()
    finally:
        os.close(schedule)


if __name__ == "__main__":
    main()
