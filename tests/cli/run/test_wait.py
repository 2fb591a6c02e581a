"""neuron-run --wait: cores that become free, those that don't, and several commands that wait at once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.harness.neuron_run import Started
from tests.harness.reporting_process import end, holder
from tests.harness.running_daemon import RunningDaemon, StartDaemon

pytest.importorskip("torch")
SCRIPT = """
import os, sys, torch, torch_xla.core.xla_model as xm
line = f"{os.environ.get('NEURON_RT_VISIBLE_CORES')} {torch.ones(2, device=xm.xla_device()).sum().item()}\\n"
os.write(1, line.encode())  # in one piece: workers share the output
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]): pass
"""
WAITING = "neuron-run: waiting for free NeuronCores\n"
Hold = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")


@pytest.fixture
def hold(daemon: RunningDaemon) -> Iterator[Hold]:
    """Has another process take cores; it gives them back at the end of its standard input."""
    with ExitStack() as stack:

        def begin(cores: str) -> subprocess.Popen[bytes]:
            process = holder(daemon.socket, NEURON_RT_VISIBLE_CORES=cores)
            stack.callback(end, process)
            return process

        yield begin


@pytest.fixture
def start(tmp_path: Path, daemon: RunningDaemon) -> Iterator[Callable[..., Started]]:
    (tmp_path / "script.py").write_text(SCRIPT)
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(closing(Started(tmp_path, "-q", *given, socket=daemon.socket)))


def waits(run: Started) -> None:
    assert run.process.stderr is not None
    assert run.process.stderr.readline() == WAITING


def test_it_starts_when_the_cores_become_free(start: Callable[..., Started], hold: Hold) -> None:
    other = hold("1")
    assert start("--wait", "0", "script.py").end() == (0, "None 2.0\n", ""), "core 0 is free"
    assert start("-n", "1", "script.py").end() == (0, "0 2.0\n", ""), "workers take the next free cores"
    run = start("--wait", "0", "--cores", "1", "script.py")
    waits(run)
    other.communicate()
    assert run.end() == (0, "1 2.0\n", "")


def test_the_time_is_over(start: Callable[..., Started], hold: Hold, daemon: RunningDaemon) -> None:
    other = hold("0-1")
    exit_code, output, errors = start("--wait", "1", "script.py").end()
    assert (exit_code, output) == (124, "")
    assert errors == (
        WAITING + "neuron-run: --wait 1: the NeuronCores did not become free; see neuron-ls for who has them, or wait "
        "longer\n"
    )
    assert daemon.holders() == [other.pid] * 2


@pytest.mark.slow
def test_cores_that_the_host_has_not_are_not_waited_for(start: Callable[..., Started]) -> None:
    exit_code, _, errors = start("--wait", "0", "--cores", "7", "script.py").end()
    assert exit_code == 1
    assert "neurontools.runtime: NRT_" in errors
    assert WAITING not in errors


@pytest.mark.slow
def test_those_that_wait_take_turns(start: Callable[..., Started], hold: Hold, tmp_path: Path) -> None:
    """Both want all cores: one gets them, and the other waits for its end instead of failing."""
    other = hold("0")
    runs = [start("--wait", "0", "--cores", "0-1", "script.py") for _ in range(2)]
    for run in runs:
        waits(run)
    other.communicate()
    for run in runs:
        assert run.end() == (0, "0-1 2.0\n", "")


@pytest.mark.slow
def test_a_turn_is_given_on_when_the_script_has_its_cores(start: Callable[..., Started], tmp_path: Path) -> None:
    first = start("--wait", "0", "--cores", "0", "script.py", "end")
    assert first.process.stdout is not None
    assert first.process.stdout.readline() == "0 2.0\n"
    second = start("--wait", "0", "--cores", "1", "script.py")
    assert second.end()[:2] == (0, "1 2.0\n")
    assert first.process.poll() is None
    (tmp_path / "end").touch()
    assert first.end() == (0, "", "")


@pytest.mark.slow
def test_a_daemon_that_is_restarted_meanwhile(
    start: Callable[..., Started], hold: Hold, daemon: RunningDaemon, start_daemon: StartDaemon
) -> None:
    other = hold("0-1")
    run = start("--wait", "0", "script.py")
    waits(run)
    other.send_signal(signal.SIGSTOP)
    daemon.stop(signal.SIGKILL)
    other.kill()
    start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    assert run.end() == (0, "None 2.0\n", "")


def test_a_signal_ends_the_waiting(start: Callable[..., Started], hold: Hold) -> None:
    hold("0-1")
    run = start("--wait", "0", "script.py")
    waits(run)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == (130, "", "")
