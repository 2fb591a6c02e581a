"""The clock of a host is set forward and back: what has an age keeps it, and nothing is found that isn't so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from neurontools.model import health
from tests.harness.host_clock import HostClock
from tests.harness.reporting_process import end, holder
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

EXECUTES = 'm = r.load_model("m"); m.end(m.begin(core=0)); m.begin(core=1)'


@pytest.mark.parametrize(
    ("set_seconds", "stuck_seconds"),
    [
        pytest.param(3600.0, 0.2, id="forward, stuck"),
        pytest.param(-7200.0, 600.0, id="back, not stuck yet", marks=pytest.mark.slow),
        pytest.param(3600.0, 600.0, id="forward, not stuck yet", marks=pytest.mark.slow),
        pytest.param(-7200.0, 0.2, id="back, stuck", marks=pytest.mark.slow),
    ],
)
def test_ages_do_not_follow_the_clock(
    start_daemon: StartDaemon, tmp_path: Path, set_seconds: float, stuck_seconds: float
) -> None:
    limits = tmp_path / "neurond.toml"
    limits.write_text(f"[health]\nstuck_seconds = {stuck_seconds}\nidle_seconds = 600\n", "utf-8")
    clock = HostClock(tmp_path)
    daemon = start_daemon(
        *("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(limits)), environment=clock.environment
    )
    worker = holder(daemon.socket, EXECUTES, **clock.environment)

    def ages() -> dict[str, float] | None:
        """By what has them, beside the moment at which they were so; None until all is told and found."""
        snapshot = daemon.snapshot()
        process = next((each for each in snapshot.processes if each.pid == worker.pid), None)
        done, running = snapshot.cores
        if process is None or not done.last_execution_at_unix_seconds or not running.execution_started_at_unix_seconds:
            return None
        found = [each for each in snapshot.health.findings if each.kind == "stuck"] if snapshot.health else []
        if bool(found) != (stuck_seconds < 600):
            return None
        moments = {
            "attached": process.attached_at_unix_seconds,
            "done": done.last_execution_at_unix_seconds,
            "running": running.execution_started_at_unix_seconds,
            "model": process.models[0].last_execution_at_unix_seconds,
        }
        return (
            {name: snapshot.taken_at_unix_seconds - (at or 0.0) for name, at in moments.items()}
            | {finding.kind: health.age_seconds(finding, snapshot) for finding in found}
            | {"moment": snapshot.taken_at_seconds}
        )

    def is_ahead_by(seconds: float) -> bool:
        return abs(daemon.snapshot().taken_at_unix_seconds - time.time() - seconds) < 60

    try:
        before = wait_until(ages)
        for ahead_seconds in (set_seconds, 0.0):  # it stays so with what is reported later, and where it comes back
            clock.set(ahead_seconds)
            wait_until(lambda ahead=ahead_seconds: is_ahead_by(ahead))  # type: ignore[misc]
            for _ in range(4):
                daemon.next_snapshot()
                now = ages()
                assert now is not None
                passed = now["moment"] - before["moment"]
                assert now == pytest.approx({name: age + passed for name, age in before.items()}, abs=1.0)
        clock.set(set_seconds)
        wait_until(lambda: is_ahead_by(set_seconds))
    finally:
        end(worker)
    (ended,) = wait_until(lambda: daemon.snapshot().ended)
    assert ended.ended_at_unix_seconds == pytest.approx(time.time() + set_seconds, abs=60)
    assert 0 < ended.ended_at_unix_seconds - ended.began_at_unix_seconds < 60 + HANG_SECONDS
