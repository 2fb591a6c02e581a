"""Scripts for training frameworks, run as users run them: on the CPU, under neuron-run and under torchrun."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.neuron_run import environment
from tests.harness.paths import ROOT

PYTHON = ROOT / ".venv/frameworks/bin/python"
SCRIPTS = ROOT / "tests/frameworks/scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
NEURON_RUN = ("-m", "neurontools.cli.run.command", "--simulate", "trn1.2xlarge", "--quiet")
ACCELERATE = ("-m", "accelerate.commands.launch")
LAUNCHERS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "two processes on the cpu": (*TORCHRUN, "2", str(SCRIPTS / "without_finalization.py")),
    "neuron-run": NEURON_RUN,
    "neuron-run with workers of the script's own": NEURON_RUN,
    "neuron-run with one worker": (*NEURON_RUN, "--nproc-per-node", "1"),
    "neuron-run with two workers": (*NEURON_RUN, "--nproc-per-node", "2"),
    "neuron-run with four workers": ("-m", NEURON_RUN[1], "--simulate", "trn1.32xlarge", "--nproc-per-node", "4"),
    "torchrun with two workers": (*TORCHRUN, "2"),
    "accelerate launch with two workers": (*ACCELERATE, "--multi_gpu", "--num_processes", "2"),
}
"""How a script is started: the arguments of Python before it. Those with `cpu` in their name have no device."""

SUMMED_ELSEWHERE = 1e-5
"""Relative. Two processes on the CPU add the gradients of accumulated batches before they average over the ranks;
accelerate with torch_xla averages those of each batch: the same sum in another order."""

RankReports = list[dict[str, Any]]
Run = Callable[..., RankReports]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script of `scripts/` in a directory that its test's runs share; what each process of it told, by rank."""
    if not PYTHON.exists():
        pytest.skip("other people's frameworks are not installed; run make frameworks")

    def run(launcher: str, script: str, *arguments: str, **variables: str) -> RankReports:
        done, reports = run_script(tmp_path, launcher, script, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return reports

    return run


def run_script(
    directory: Path, launcher: str, script: str, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], RankReports]:
    """Runs a script of `scripts/` in a directory. Returns how it ended, and what each process told, by rank."""
    told = directory / "told"
    told.mkdir(exist_ok=True)
    for path in told.iterdir():
        path.unlink()
    done = subprocess.run(
        [str(PYTHON), *LAUNCHERS[launcher], str(SCRIPTS / script), str(told), *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        env={
            **environment(directory, PYTHONPATH="", HF_HUB_OFFLINE="1", HOME=str(directory)),
            "NEURON_RT_NUM_CORES": "1" if launcher == "neuron-run" else "",
            **({"USE_TORCH_XLA": "0", "NEURONTOOLS_RUNTIME": "0"} if "cpu" in launcher else {}),
            **variables,
        },
        check=False,
    )
    return done, [json.loads(path.read_text()) for path in sorted(told.iterdir())]
