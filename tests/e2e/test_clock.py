"""The clock of a host is set forward and back: what has an age keeps it, and nothing is found that isn't so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neurontools import health
from neurontools.model import Finding, NeuronCore, Process, Snapshot
from tests.harness.host_clock import HostClock
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import wait_until

WORKER = """
import sys
from neurontools.runtime import Reporter

reporter = Reporter.attach()
model = reporter.load_model("m")
with model.execution(core=0):
    pass
model.begin(core=1)
print(flush=True)
sys.stdin.read()
"""
LIMITS = "[health]\nstuck_seconds = {}\nidle_seconds = 600\n"


@pytest.mark.parametrize("set_seconds", [3600.0, -7200.0], ids=["forward", "back"])
@pytest.mark.parametrize("stuck_seconds", [600.0, 0.2], ids=["not stuck yet", "stuck"])
def test_ages_do_not_follow_the_clock(
    start_daemon: StartDaemon, tmp_path: Path, set_seconds: float, stuck_seconds: float
) -> None:
    limits = tmp_path / "neurond.toml"
    limits.write_text(LIMITS.format(stuck_seconds), "utf-8")
    clock = HostClock(tmp_path)
    daemon = start_daemon(
        *("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(limits)), environment=clock.environment
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env={**os.environ, **clock.environment, "NEURONTOOLS_SOCKET": daemon.socket},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"\n"

        def parts(snapshot: Snapshot) -> tuple[Process, NeuronCore, NeuronCore, list[Finding]] | None:
            process = next((each for each in snapshot.processes if each.pid == worker.pid), None)
            done, running = snapshot.cores
            is_told = done.last_execution_at_unix_seconds and running.execution_started_at_unix_seconds
            found = list(snapshot.health.findings) if snapshot.health is not None else []
            is_found = bool(found) == (stuck_seconds < 600)
            return (process, done, running, found) if process is not None and is_told and is_found else None

        def ages() -> tuple[float, dict[str, float]]:
            """When they were so, and the ages."""
            snapshot = daemon.snapshot()
            seen = parts(snapshot)
            assert seen is not None
            process, done, running, found = seen
            moments = {
                "attached": process.attached_at_unix_seconds,
                "done": done.last_execution_at_unix_seconds,
                "running": running.execution_started_at_unix_seconds,
                "model": process.models[0].last_execution_at_unix_seconds,
            }
            told = {name: snapshot.taken_at_unix_seconds - (at or 0.0) for name, at in moments.items()}
            return snapshot.taken_at_seconds, told | {
                finding.kind: health.age_seconds(finding, snapshot) for finding in found
            }

        wait_until(lambda: parts(daemon.snapshot()))
        before_seconds, before = ages()
        clock.set(set_seconds)
        for _ in range(2):  # it stays so with what is reported after that, and where the clock comes back

            def is_set(seconds: float = set_seconds) -> bool:
                return abs(daemon.snapshot().taken_at_unix_seconds - time.time() - seconds) < 60

            wait_until(is_set)
            for _ in range(10):
                daemon.next_snapshot()
                now_seconds, now = ages()
                assert now == pytest.approx(
                    {name: age + now_seconds - before_seconds for name, age in before.items()},
                    abs=0.06,
                )
            set_seconds = 0.0
            clock.set(0.0)
    finally:
        worker.kill()
        worker.communicate()


def test_what_ended_is_logged_by_the_clock_that_the_host_shows(start_daemon: StartDaemon, tmp_path: Path) -> None:
    clock = HostClock(tmp_path)
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", environment=clock.environment)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env={**os.environ, **clock.environment, "NEURONTOOLS_SOCKET": daemon.socket},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"\n"
        began = time.time()
        clock.set(3600.0)
        wait_until(lambda: daemon.snapshot().taken_at_unix_seconds - time.time() > 3000)
    finally:
        worker.kill()
        worker.communicate()
    (ended,) = wait_until(lambda: daemon.snapshot().ended)
    assert ended.ended_at_unix_seconds == pytest.approx(time.time() + 3600, abs=60)
    assert 0 < ended.ended_at_unix_seconds - ended.began_at_unix_seconds < time.time() - began + 60
