"""The examples as users run them, beside a real daemon and without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neurontools.util.errors import EXIT_NO_DAEMON
from tests.harness import python_process
from tests.harness.paths import ROOT
from tests.harness.restarted_daemon import RestartedDaemon

pytest.importorskip("torch")


def run(name: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = python_process.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        loaded=python_process.TORCH,
        env=python_process.user_environment(**environment),
        text=True,
        cwd="/",
    )
    return done.returncode, done.stdout, done.stderr


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
