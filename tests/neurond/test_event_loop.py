"""What the daemon tells of its event loop's turns."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request

import pytest
from neurond.system.event_loop import timed_loop, turns

from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import wait_until


def spin(cpu_seconds: float) -> None:
    end_seconds = time.thread_time() + cpu_seconds
    while time.thread_time() < end_seconds:
        pass


def test_a_turn_is_all_that_is_ready_at_a_time_and_waiting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "longest_cpu_seconds", None)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        spin(0.5)  # before it begins to serve
        turns.begin()
        for _ in range(2):
            loop.call_soon(spin, 0.03)
        await asyncio.sleep(0.5)

    with asyncio.Runner(loop_factory=timed_loop) as runner:
        runner.run(run())
    assert turns.longest_cpu_seconds is not None
    assert 0.06 <= turns.longest_cpu_seconds < 0.5


def test_the_daemon_tells_its_longest_turn(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--metrics-listen", "127.0.0.1:0")
    found = wait_until(lambda: re.search(r"http://(127\.0\.0\.1:\d+)", daemon.log))
    with urllib.request.urlopen(f"http://{found[1]}/metrics") as reply:
        text = reply.read().decode()
    told = re.search(r"^neurontools_daemon_longest_turn_cpu_seconds (\S+)$", text, re.MULTILINE)
    assert told
    assert 0 < float(told[1]) < 10
