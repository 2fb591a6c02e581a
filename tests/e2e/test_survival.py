"""What a training with checkpoints survives: the shipped example, on a host whose devices break."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.testing import SimulatedHost
from tests.harness.paths import PYTHONPATH
from tests.harness.waiting import HANG_SECONDS

pytest_plugins = ["neurontools.testing.pytest_plugin"]
pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples/train_resume.py"
STEPS = 30

Train = Callable[..., "subprocess.CompletedProcess[str]"]


def train(host: SimulatedHost, directory: Path, launcher: list[str], **variables: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XLA_"))}
    return subprocess.run(
        [*launcher, str(EXAMPLE), "--directory", str(directory), "--steps", str(STEPS)],
        env={
            **kept,
            **host.environment,
            "PYTHONPATH": PYTHONPATH,
            "OMP_NUM_THREADS": "1",
            "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def resumed_at(output: str) -> list[int]:
    """The steps that ranks went on with, each once."""
    return sorted({int(step) for step in re.findall(r"goes on with step (\d+)", output)})


@pytest.fixture
def host(simulated_neuron_host: Callable[..., SimulatedHost]) -> SimulatedHost:
    return simulated_neuron_host("trn1.2xlarge", interval_seconds=0.1)


@pytest.mark.long
def test_a_process_of_its_own_fails_and_goes_on_when_it_is_started_again(host: SimulatedHost, tmp_path: Path) -> None:
    alone = [sys.executable, "-m", "neurontools.runtime"]
    with host.fault("execution-unit-lost", device=0, after_executions=17):
        done = train(host, tmp_path, alone, NEURON_RT_NUM_CORES="1")
        assert done.returncode == 1
        assert "NRT_EXEC_UNIT_UNRECOVERABLE(101)" in done.stderr
        done = train(host, tmp_path, alone, NEURON_RT_NUM_CORES="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert resumed_at(done.stdout) != []
