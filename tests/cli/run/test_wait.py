"""neuron-run --wait: cores that become free, those that don't, and several commands that wait at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.neuron_run import Started, environment, owners
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")
HOLDER = """
import sys
from neurontools.runtime import Reporter
with Reporter.attach(): print("attached", flush=True); sys.stdin.read()
"""
SCRIPT = """
import os, sys, torch, torch_xla.core.xla_model as xm
line = f"{os.environ.get('NEURON_RT_VISIBLE_CORES')} {torch.ones(2, device=xm.xla_device()).sum().item()}\\n"
os.write(1, line.encode())  # in one piece: workers share the output
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]): pass
"""
WAITING = "neuron-run: waiting for free NeuronCores\n"
Hold = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")


@pytest.fixture
def hold(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Hold]:
    """Has another process take cores; it gives them back at the end of its standard input."""
    holders: list[subprocess.Popen[str]] = []

    def start(cores: str) -> subprocess.Popen[str]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            env=environment(tmp_path, daemon.socket, NEURON_RT_VISIBLE_CORES=cores),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "attached\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


@pytest.fixture
def start(tmp_path: Path, daemon: RunningDaemon) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(*arguments: str, **changes: str) -> Started:
        started.append(Started(tmp_path, "-q", *arguments, socket=daemon.socket, **changes))
        return started[-1]

    (tmp_path / "script.py").write_text(SCRIPT)
    yield begin
    for each in started:
        each.close()


def waits(run: Started) -> None:
    assert run.process.stderr is not None
    assert run.process.stderr.readline() == WAITING


def test_it_starts_when_the_cores_become_free(start: Callable[..., Started], hold: Hold) -> None:
    holder = hold("1")
    run = start("--wait", "60", "--cores", "1", "script.py")
    waits(run)
    holder.communicate()
    assert run.end() == (0, "1 2.0\n", "")


def test_a_killed_owner_frees_them_too(start: Callable[..., Started], hold: Hold) -> None:
    holder = hold("0-1")
    run = start("--wait", "0", "-n", "2", "script.py")
    waits(run)
    holder.kill()
    exit_code, output, errors = run.end()
    assert (exit_code, errors) == (0, "")
    assert output.split() == ["None", "2.0"] * 2


def test_free_cores_need_no_waiting(start: Callable[..., Started], hold: Hold) -> None:
    hold("0")
    assert start("--wait", "60", "script.py").end() == (0, "None 2.0\n", "")  # core 1 is free


def test_the_time_is_over(start: Callable[..., Started], hold: Hold, daemon: RunningDaemon) -> None:
    holder = hold("0-1")
    exit_code, output, errors = start("--wait", "1", "script.py").end()
    assert (exit_code, output) == (124, "")
    assert errors == (
        WAITING + "neuron-run: --wait 1: the NeuronCores did not become free; see neuron-ls for who has them, or wait "
        "longer\n"
    )
    assert owners(daemon.socket) == [holder.pid] * 2


def test_cores_that_the_host_has_not_are_not_waited_for(start: Callable[..., Started]) -> None:
    exit_code, _, errors = start("--wait", "0", "--cores", "7", "script.py").end()
    assert exit_code == 1
    assert "neurontools.runtime: NRT_" in errors
    assert WAITING not in errors


def test_those_that_wait_take_turns(start: Callable[..., Started], hold: Hold, tmp_path: Path) -> None:
    """Both want all cores: one gets them, and the other waits for its end instead of failing."""
    holder = hold("0")
    runs = [start("--wait", "0", "-n", "2", "script.py") for _ in range(2)]
    for run in runs:
        waits(run)
    holder.communicate()
    for run in runs:
        exit_code, output, errors = run.end()
        assert (exit_code, errors) == (0, "")
        assert output.split() == ["None", "2.0"] * 2


def test_a_turn_is_given_on_when_the_script_has_its_cores(start: Callable[..., Started], tmp_path: Path) -> None:
    first = start("--wait", "60", "--cores", "0", "script.py", "end")
    assert first.process.stdout is not None
    assert first.process.stdout.readline() == "0 2.0\n"
    second = start("--wait", "60", "--cores", "1", "script.py")
    assert second.end()[:2] == (0, "1 2.0\n")
    assert first.process.poll() is None
    (tmp_path / "end").touch()
    assert first.end() == (0, "", "")


def test_a_daemon_that_is_restarted_meanwhile(
    start: Callable[..., Started], hold: Hold, daemon: RunningDaemon, start_daemon: StartDaemon
) -> None:
    holder = hold("0-1")
    run = start("--wait", "0", "script.py")
    waits(run)
    holder.send_signal(signal.SIGSTOP)
    daemon.stop(signal.SIGKILL)
    holder.kill()
    start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    assert run.end() == (0, "None 2.0\n", "")


def test_a_signal_ends_the_waiting(start: Callable[..., Started], hold: Hold, tmp_path: Path) -> None:
    hold("0-1")
    run = start("--wait", "0", "script.py")
    waits(run)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == (130, "", "")
    again = start("--wait", "0", "script.py")
    waits(again)
    os.kill(again.process.pid, signal.SIGKILL)
    wait_until(lambda: again.process.poll() is not None)
