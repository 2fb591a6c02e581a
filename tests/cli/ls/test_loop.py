"""neuron-ls --loop: rows as they come, in pipes, on terminals, and over a restart of the daemon."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

from tests.harness.command import RunCommand, streams
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import is_readable, wait_until

LOOP = [sys.executable, str(NEURON_LS), "--loop", "0.05", "-d", "0-1"]


def test_a_row_for_each_device_each_time(neuron_ls: RunCommand, daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    wait_until(lambda: daemon.find(os.getpid()))
    done = neuron_ls("--socket", daemon.socket, "--loop", "0.05", "-n", "3", "-d", "0-1")
    attachment.close()
    assert (done.returncode, done.stderr) == (0, "")
    whose, titles, units, *rows = done.stdout.splitlines()
    assert whose == "# i-simulated (trn1.32xlarge) [simulated]"
    assert titles.split() == "# time nd cores util flops mem mem power ecc health pids".split()
    assert units.split() == "# h:m:s index held % TFLOPS GB % % unc/corr".split()
    assert [row.split()[1:3] for row in rows] == [["0", "1/2"], ["1", "0/2"]] * 3
    assert [row.split()[-1] for row in rows] == [str(os.getpid()), "-"] * 3


def test_a_query_is_repeated_with_one_header(neuron_ls: RunCommand, shared_daemon: RunningDaemon) -> None:
    loop = ("--loop", "0.05", "--count", "3", "-d", "1", "--query", "timestamp,index")
    flags = ("--socket", shared_daemon.socket, *loop)
    header, *rows = neuron_ls(*flags).stdout.splitlines()
    assert header == "timestamp,index"
    assert len({row.partition(",")[0] for row in rows}) == 3
    assert {row.partition(",")[2] for row in rows} == {"1"}
    lines = neuron_ls(*flags, "--format", "json").stdout.splitlines()
    assert [[list(row) for row in json.loads(line)] for line in lines] == [[["timestamp", "index"]]] * 3
    assert len(neuron_ls(*flags, "--format", "csv,noheader").stdout.splitlines()) == 3


def test_it_goes_on_when_the_daemon_is_back(
    daemon: RunningDaemon, start_daemon: StartDaemon, clean_environment: dict[str, str]
) -> None:
    with ExitStack() as stack:
        command = [*LOOP, "--socket", daemon.socket]
        endless = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment)
        )
        stack.callback(endless.kill)
        rows, errors = streams(endless)
        assert rows.readline()
        daemon.stop(signal.SIGKILL)
        assert errors.readline().endswith("; waiting until it is back\n")
        start_daemon()
        assert errors.readline() == f"neuron-ls: the monitor daemon at unix:{daemon.socket} is back\n"
        descriptor = rows.fileno()
        os.set_blocking(descriptor, False)
        with suppress(BlockingIOError):
            while os.read(descriptor, 65536):
                pass
        os.set_blocking(descriptor, True)
        assert os.read(descriptor, 65536), "rows come again"


def test_on_a_terminal_the_header_comes_again(shared_daemon: RunningDaemon, clean_environment: dict[str, str]) -> None:
    pid, descriptor = pty.fork()
    if not pid:
        os.environ.clear()
        os.environ.update(clean_environment, LINES="10", COLUMNS="100")  # the terminal doesn't know its size
        os.execv(LOOP[0], [*LOOP, "--socket", shared_daemon.socket, "-n", "8"])
    text = b""
    while is_readable(descriptor):
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
