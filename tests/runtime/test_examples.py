"""The examples as users run them, beside a real daemon and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.errors import EXIT_NO_DAEMON
from tests.harness import python_process
from tests.harness.paths import ROOT
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

PARAMETER_BYTES = 4 * (64 * 1024 + 1024 + 1024 * 10 + 10)
FLOP = 2 * 256 * (64 * 1024 + 1024 * 10) + 2 * 256 * (64 * 1024 + 2 * 1024 * 10)  # the inputs need no gradient

pytest.importorskip("torch")


def start(name: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("NEURON")}
    return python_process.popen(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        loaded=python_process.TORCH,
        env={**cleared, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def run(name: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    with start(name, *arguments, **environment) as process:
        printed, told = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, printed, told


def test_training_reports_what_it_is(daemon: RestartedDaemon) -> None:
    with start("train_mlp.py", "--seconds", "3600", "--quiet", NEURONTOOLS_SOCKET=daemon.socket) as training:
        try:
            process = wait_until(
                lambda: (
                    found
                    if (found := daemon.find(training.pid))
                    and found.executions
                    and found.executions.completed_total > 50
                    else None
                )
            )
            snapshot = daemon.snapshot()
        finally:
            training.kill()
    assert process.neuroncore_indices == (0, 1)
    assert [model.name for model in process.models] == ["train_mlp"] * 2
    for core in snapshot.cores[:2]:
        assert core.memory.constants_bytes == PARAMETER_BYTES
        batch_bytes = 256 * (4 * 64 + 8)
        optimizer_bytes = 2 * PARAMETER_BYTES + 4 * 4 if core.index == 0 else 0
        assert core.memory.tensors_bytes == PARAMETER_BYTES + batch_bytes + optimizer_bytes
        assert core.executions_total
        assert core.flop_total == core.executions_total * FLOP
    wait_until(lambda: daemon.owners() == ())


def test_training_learns_without_a_daemon(socket: str) -> None:
    arguments = ("--steps", "150", "--seconds", "3600")
    code, printed, told = run("train_mlp.py", *arguments, NEURONTOOLS_SOCKET=socket, NEURON_RT_NUM_CORES="3")
    assert code == 0
    words = printed.splitlines()[-1].split()
    assert words[:4] == ["trained", "150", "steps,", "loss"]
    assert float(words[4]) < 1.0  # log(10) is 2.3
    assert told.count("\n") == 1
    assert "nothing is monitored" in told


def test_training_tells_errors_in_a_line(daemon: RestartedDaemon) -> None:
    for environment, exit_code, text in (
        ({"NEURON_RT_NUM_CORES": "99"}, 1, "this host has 32 NeuronCores"),
        ({"NEURON_RT_VISIBLE_CORES": "1,3"}, 1, "not contiguous"),
        ({"NEURONTOOLS_SOCKET": "/nowhere", "NEURONTOOLS_REQUIRE_DAEMON": "1"}, EXIT_NO_DAEMON, "no monitor daemon at"),
    ):
        code, _, told = run("train_mlp.py", "--steps", "1", **{"NEURONTOOLS_SOCKET": daemon.socket, **environment})
        assert code == exit_code
        assert told.startswith("train_mlp: ")
        assert told.count("\n") == 1
        assert text in told


@pytest.mark.slow  # it trains for eight seconds, so that people see it
def test_the_demo_shows_the_process_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, printed, told = run("demo.py", TMPDIR=str(tmp_path))
    assert (code, told) == (0, "")
    before, after = printed.split("$ neuron-ls\n")[1:]
    assert printed.count("instance-type: trn1.32xlarge") == 2
    assert "train_mlp.py" in before
    assert "holds NeuronCores 0, 1" in before
    assert "parameters 300.0 KB" in before
    assert "train_mlp.py" not in after.split("Yours:")[0]
    assert "\r" not in printed
    assert "\x1b" not in printed
    daemon_pid = int(printed.partition("neurond, PID ")[2].partition(")")[0])
    training_pid = int(printed.partition("process (PID ")[2].partition(")")[0])
    assert not [pid for pid in (daemon_pid, training_pid) if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("neurontools-*"))
