"""Measures an idle daemon beside a process that has imported grpc and wakes once a second."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
from measuring import Figure, compile_sources, core_share_percent, cpu_seconds, daemon, report, resident_mib

SECONDS = 60.0
REFERENCE = """
import asyncio, grpc.aio
async def tick():
    while True:
        await asyncio.sleep(1)
asyncio.run(tick())
"""


def main() -> None:
    compile_sources()
    reference = subprocess.Popen([sys.executable, "-c", REFERENCE])
    try:
        with daemon("--simulate", "trn1.32xlarge") as running:
            time.sleep(2)
            of_reference = psutil.Process(reference.pid)
            before = cpu_seconds(of_reference)
            share = core_share_percent(running.process, SECONDS)
            reference_share = 100 * (cpu_seconds(of_reference) - before) / SECONDS
            memory, reference_memory = resident_mib(running.process), resident_mib(of_reference)
    finally:
        reference.kill()
        reference.wait()
    report(
        f"neurond, idle at 1 Hz on trn1.32xlarge, over {SECONDS:.0f} s",
        [
            Figure("daemon", share, "% of core", "at most 0.3"),
            Figure("a sleeping process with grpc", reference_share, "% of core"),
            Figure("daemon", memory, "MiB", "at most 45"),
            Figure("a sleeping process with grpc", reference_memory, "MiB"),
        ],
    )


if __name__ == "__main__":
    main()
