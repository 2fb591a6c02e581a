"""Frameworks on other devices than the simulated one tell the daemon how their training goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.framework_script import Run
from tests.harness.restarted_daemon import RestartedDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RestartedDaemon]:
    daemon = RestartedDaemon(str(tmp_path / "n.sock"))
    daemon.start()
    yield daemon
    daemon.kill()


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "steps", "samples", "checkpoints"),
    [("hf_trainer", 6, 24, 2), ("lightning", 5, 20, 1), ("accelerate", 5, 20, 1)],
)
def test_a_framework_tells_its_steps_samples_input_wait_and_checkpoints(
    run: Run, daemon: RestartedDaemon, framework: str, steps: int, samples: int, checkpoints: int
) -> None:
    variables = {"NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_VISIBLE_CORES": "2"}
    [told] = run("cpu", "report_training.py", framework, **variables)
    assert (told["steps_total"], told["samples_total"], told["checkpoints_total"]) == (steps, samples, checkpoints)
    assert told["input_wait_seconds_total"] > 0
    assert told["collectives_total"] is None


@pytest.mark.long
@pytest.mark.parametrize("framework", ["hf_trainer", "lightning", "accelerate"])
def test_without_a_daemon_nothing_is_told_and_nothing_runs_beside_it(run: Run, framework: str) -> None:
    [told] = run("cpu", "report_training.py", framework)
    assert "steps_total" not in told
    assert "neurontools-reporter" not in told["threads"]
