"""The examples as users run them, beside a real daemon and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neurontools.errors import EXIT_NO_DAEMON
from tests.harness import python_process
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PARAMETER_BYTES = 4 * (64 * 1024 + 1024 + 1024 * 10 + 10)
FLOP = 2 * 256 * (64 * 1024 + 1024 * 10) + 2 * 256 * (64 * 1024 + 2 * 1024 * 10)  # the inputs need no gradient

pytest.importorskip("torch")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an example; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(name: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        cleared = {key: value for key, value in os.environ.items() if not key.startswith("NEURON")}
        process = python_process.popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            loaded=python_process.TORCH,
            env={**cleared, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def loss_of(line: str) -> float:
    return float(line.partition("loss ")[2].split(maxsplit=1)[0])


def test_training_reports_what_it_is(daemon: RestartedDaemon, start: Start) -> None:
    training = start("train_mlp.py", "--seconds", "60", "--quiet", NEURONTOOLS_SOCKET=daemon.socket)
    process = wait_until(
        lambda: (
            found
            if (found := daemon.find(training.pid)) and found.executions and found.executions.completed_total > 50
            else None
        )
    )
    snapshot = daemon.snapshot()
    assert process.neuroncore_indices == (0, 1)
    assert [model.name for model in process.models] == ["train_mlp"] * 2
    for core in snapshot.cores[:2]:
        assert core.memory.constants_bytes == PARAMETER_BYTES
        batch_bytes = 256 * (4 * 64 + 8)
        optimizer_bytes = 2 * PARAMETER_BYTES + 4 * 4 if core.index == 0 else 0
        assert core.memory.tensors_bytes == PARAMETER_BYTES + batch_bytes + optimizer_bytes
        assert core.executions_total
        assert core.flop_total == core.executions_total * FLOP
    training.kill()
    training.communicate()
    wait_until(lambda: daemon.owners() == ())


def test_training_learns_without_a_daemon(socket: str, start: Start) -> None:
    training = start("train_mlp.py", "--steps", "150", NEURONTOOLS_SOCKET=socket, NEURON_RT_NUM_CORES="3")
    printed, told = training.communicate(timeout=HANG_SECONDS)
    assert training.returncode == 0
    assert printed.splitlines()[-1].startswith("trained 150 steps, loss ")
    assert loss_of(printed.splitlines()[-1]) < 1.0  # log(10) is 2.3
    assert told.count("\n") == 1
    assert "nothing is monitored" in told


def test_training_tells_errors_in_a_line(daemon: RestartedDaemon, start: Start) -> None:
    for environment, exit_code, text in (
        ({"NEURON_RT_NUM_CORES": "99"}, 1, "this host has 32 NeuronCores"),
        ({"NEURON_RT_VISIBLE_CORES": "1,3"}, 1, "not contiguous"),
        ({"NEURONTOOLS_SOCKET": "/nowhere", "NEURONTOOLS_REQUIRE_DAEMON": "1"}, EXIT_NO_DAEMON, "no monitor daemon at"),
    ):
        training = start("train_mlp.py", "--steps", "1", **{"NEURONTOOLS_SOCKET": daemon.socket, **environment})
        _, told = training.communicate(timeout=HANG_SECONDS)
        assert training.returncode == exit_code
        assert told.startswith("train_mlp: ")
        assert told.count("\n") == 1
        assert text in told


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo printed, and the directory for its temporary files."""

    printed: str
    temporary: Path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo has been run to its end, without a terminal."""
    directory = tmp_path_factory.mktemp("demo")
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("NEURON")}
    done = python_process.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        loaded=python_process.TORCH,
        env={**cleared, "TMPDIR": str(directory)},
        text=True,
        cwd="/",
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Demo(done.stdout, directory)


def test_the_demo_shows_the_process(demo: Demo) -> None:
    before, after = demo.printed.split("$ neuron-ls\n")[1:]
    assert demo.printed.count("instance-type: trn1.32xlarge") == 2
    assert "train_mlp.py" in before
    assert "holds NeuronCores 0, 1" in before
    assert "parameters 300.0 KB" in before
    assert "train_mlp.py" not in after.split("Yours:")[0]
    assert "\r" not in demo.printed
    assert "\x1b" not in demo.printed


def test_the_demo_leaves_nothing_behind(demo: Demo) -> None:
    daemon_pid = int(demo.printed.partition("neurond, PID ")[2].partition(")")[0])
    training_pid = int(demo.printed.partition("process (PID ")[2].partition(")")[0])
    assert not [pid for pid in (daemon_pid, training_pid) if Path(f"/proc/{pid}").exists()]
    assert not list(demo.temporary.glob("neurontools-*"))
