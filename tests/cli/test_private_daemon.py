"""A daemon of a command's own, with the real neurond."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from neurontools.cli.daemon.private import PrivateDaemon
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import call
from neurontools.util.errors import UserError
from tests.harness.waiting import AWAIT_INPUT, HANG_SECONDS, is_readable, run_to_end

HOLDER = f"""
from neurontools.cli.daemon.private import PrivateDaemon
with PrivateDaemon("trn1.2xlarge") as daemon:
    print(daemon.pid, daemon.socket_path, flush=True)
    exec({AWAIT_INPUT!r})
"""


@pytest.fixture(autouse=True)
def temporary_directory(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the daemons' directories are made, for this process and its children."""
    monkeypatch.setenv("TMPDIR", str(socket_directory))
    monkeypatch.setattr(tempfile, "tempdir", str(socket_directory))


def wait_for_end(pidfd: int) -> None:
    assert is_readable(pidfd)
    os.close(pidfd)


@pytest.mark.slow
def test_serves_and_is_gone_afterwards(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = socket_directory / "trap"
    trap.mkdir()
    (trap / "neurond.py").write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(trap)
    handler = signal.getsignal(signal.SIGTERM)
    with PrivateDaemon("trn1.2xlarge") as daemon:
        assert Path(daemon.socket_path).parent.stat().st_mode & 0o777 == 0o700
        reply = call(
            daemon.socket_path, "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=HANG_SECONDS
        )
        snapshot = neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot
        assert snapshot.instance.instance_type == "trn1.2xlarge"
        pid = daemon.pid
        assert pid == snapshot.daemon_pid
        pidfd = os.pidfd_open(pid)
    wait_for_end(pidfd)
    assert daemon.pid is None
    assert list(socket_directory.iterdir()) == [trap]
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.slow
def test_is_gone_after_an_error_also_from_a_deep_temporary_directory(
    socket_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = socket_directory / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with suppress(ZeroDivisionError), PrivateDaemon("trn1.2xlarge") as daemon:
        assert Path(daemon.socket_path).exists()
        raise ZeroDivisionError
    assert not Path(daemon.socket_path).parent.exists()


@pytest.mark.parametrize(
    ("instance_type", "start_seconds", "exit_code", "told"),
    [
        ("trn9.huge", 60.0, 2, "can't simulate trn9.huge: no instance type"),
        ("trn1.2xlarge", 0.0, 124, "the private monitor daemon was not ready within 0 s"),
    ],
)
def test_says_why_it_did_not_start(
    socket_directory: Path, instance_type: str, start_seconds: float, exit_code: int, told: str
) -> None:
    with pytest.raises(UserError) as raised, PrivateDaemon(instance_type, start_seconds=start_seconds):
        raise AssertionError
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == exit_code
    assert list(socket_directory.iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_daemon_ends_with_the_command(socket_directory: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pidfd = os.pidfd_open(int(holder.stdout.readline().split()[0]))
        holder.send_signal(number)
        wait_for_end(pidfd)
        holder.communicate(timeout=HANG_SECONDS)
    if number != signal.SIGKILL:
        assert list(socket_directory.iterdir()) == []


# The signal comes when the daemon's process is there and nobody knows it yet.
INTERRUPTED = """
import os, signal, sys
from neurontools.cli.daemon.private import PrivateDaemon
def interrupt(frame, event, what):
    if event == "c_return" and getattr(what, "__name__", "") == "fork_exec":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)
sys.setprofile(interrupt)
try:
    PrivateDaemon("trn1.2xlarge").__enter__()
except SystemExit as end:
    print(end.code)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def test_a_signal_while_the_daemon_is_started_leaves_nothing(socket_directory: Path) -> None:
    done = run_to_end([sys.executable, "-c", INTERRUPTED], check=True)
    assert (done.stdout, done.stderr) == (f"{128 + signal.SIGTERM}\nno child is left\n", "")
    assert list(socket_directory.iterdir()) == []
