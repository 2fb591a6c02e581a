"""neuron-ls --loop: rows as they come, in pipes, on terminals, and over a restart of the daemon."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.neuron_ls import RunNeuronLs
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS

LOOP = [sys.executable, str(NEURON_LS), "--loop", "0.05", "-d", "0-1"]


@pytest.fixture
def endless(daemon: RunningDaemon, clean_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [*LOOP, "--socket", daemon.socket]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment
    ) as process:
        yield process
        process.kill()


def test_a_row_for_each_device_each_time(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    done = neuron_ls("--socket", daemon.socket, "--loop", "0.05", "-n", "3", "-d", "0-1")
    attachment.close()
    assert (done.returncode, done.stderr) == (0, "")
    whose, titles, units, *rows = done.stdout.splitlines()
    assert whose == "# i-simulated (trn1.32xlarge) [simulated]"
    assert titles.split() == "# time nd cores util flops mem mem power ecc health pids".split()
    assert units.split()[:4] == ["#", "h:m:s", "index", "held"]
    assert [row.split()[1:3] for row in rows] == [["0", "1/2"], ["1", "0/2"]] * 3
    assert [row.split()[-1] for row in rows] == [str(os.getpid()), "-"] * 3


def test_a_query_is_repeated_with_one_header(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    flags = ("--socket", daemon.socket, "--loop", "0.05", "--count", "3", "-d", "1", "--query", "timestamp,index")
    done = neuron_ls(*flags)
    header, *rows = done.stdout.splitlines()
    assert header == "timestamp,index"
    assert len({row.partition(",")[0] for row in rows}) == 3
    assert {row.partition(",")[2] for row in rows} == {"1"}
    lines = neuron_ls(*flags, "--format", "json").stdout.splitlines()
    assert [[list(row) for row in json.loads(line)] for line in lines] == [[["timestamp", "index"]]] * 3
    assert len(neuron_ls(*flags, "--format", "csv,noheader").stdout.splitlines()) == 3


def test_it_is_ended_as_others_are(endless: subprocess.Popen[str]) -> None:
    assert endless.stdout is not None
    assert endless.stderr is not None
    assert endless.stdout.readline()
    endless.send_signal(signal.SIGINT)
    assert endless.wait(HANG_SECONDS) == 130
    assert endless.stderr.read() == ""


def test_a_reader_that_goes_away_ends_it_quietly(endless: subprocess.Popen[str]) -> None:
    assert endless.stdout is not None
    assert endless.stderr is not None
    assert endless.stdout.readline()
    endless.stdout.close()
    assert endless.wait(HANG_SECONDS) == -signal.SIGPIPE
    assert endless.stderr.read() == ""


def test_it_goes_on_when_the_daemon_is_back(start_daemon: StartDaemon, clean_environment: dict[str, str]) -> None:
    daemon = start_daemon()
    with subprocess.Popen(
        [*LOOP, "--socket", daemon.socket],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        daemon.stop(signal.SIGKILL)
        assert process.stderr.readline().endswith("; waiting until it is back\n")
        start_daemon()
        assert process.stderr.readline() == f"neuron-ls: the monitor daemon at unix:{daemon.socket} is back\n"
        for _ in range(200):
            assert process.stdout.readline()
        process.kill()


def test_without_a_daemon_it_does_not_wait(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls("--loop", "1", "--socket", "/tmp/nobody.sock")
    assert (done.returncode, done.stdout) == (12, "")
    assert len(done.stderr.splitlines()) == 1


def test_on_a_terminal_the_header_comes_again(daemon: RunningDaemon, clean_environment: dict[str, str]) -> None:
    pid, descriptor = pty.fork()
    if not pid:
        os.environ.clear()
        os.environ.update(clean_environment, LINES="10", COLUMNS="100")  # the terminal doesn't know its size
        os.execv(LOOP[0], [*LOOP, "--socket", daemon.socket, "-n", "8"])
    text = b""
    while select.select([descriptor], [], [], HANG_SECONDS)[0]:
        try:
            part = os.read(descriptor, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(descriptor)
    lines = text.decode().splitlines()
    assert ["#" if line.startswith("#") else "." for line in lines] == list("###......" * 2 + "###....")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--loop", "0"), "--loop 0: give seconds from 0.05 to 3600"),
        (("--loop", "nan"), "--loop nan: give seconds"),
        (("--loop", "1", "-n", "0"), "--count 0: give a whole number from 1"),
        (("--count", "2"), "--count is for --loop"),
        (("--loop", "1", "--health"), "--loop and --health exclude each other"),
        (("--loop", "1", "-j"), "--json-output is not for --loop; --query chooses"),
        (("--loop", "1", "--format", "json"), "--format is for --query"),
    ],
)
def test_misuse(neuron_ls: RunNeuronLs, arguments: tuple[str, ...], told: str) -> None:
    done = neuron_ls(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
