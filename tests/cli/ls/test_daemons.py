"""Which daemon neuron-ls asks, and what it says of one that is not there or answers oddly."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from neurontools.cli.ls import command
from neurontools.errors import UserError
from neurontools.model import Snapshot
from neurontools.rpc.socket_path import SYSTEM_SOCKET
from neurontools.views.device_list import device_list_table
from tests.harness.monitor_server import MonitorServer
from tests.harness.neuron_ls import RunNeuronLs

without_own_daemon = pytest.mark.skipif(
    Path(SYSTEM_SOCKET).exists() or Path("/dev/neuron0").exists(), reason="this host has a daemon or devices"
)


def test_named_socket_without_daemon(neuron_ls: RunNeuronLs, short_path: Path) -> None:
    path = f"{short_path}/gone.sock"
    done = neuron_ls("--socket", path)
    assert (done.stdout, done.returncode) == ("", 12)
    assert done.stderr == (
        f"neuron-ls: no monitor daemon at unix:{path} (no such file or directory); start one with "
        f'"neurond --socket {path} --simulate trn1.32xlarge"\n'
    )


def test_stale_socket(neuron_ls: RunNeuronLs, short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{short_path}/stale.sock")
    done = neuron_ls(NEURONTOOLS_SOCKET=f"{short_path}/stale.sock")
    assert done.returncode == 12
    assert "(connection refused)" in done.stderr


@without_own_daemon
def test_neither_daemon_nor_devices(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls()
    assert (done.stdout, done.returncode) == ("", 1)
    time, _, rest = done.stderr.partition(" ")
    told_at = datetime.strptime(time, 'time="%Y-%m-%dT%H:%M:%SZ"').replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - told_at) < timedelta(minutes=5)
    assert rest == (
        'level=fatal msg="Failed to load MLA system information" error="failed to discover Neuron devices: no driver '
        "on this host and no monitor daemon; start one with neurond --simulate trn1.32xlarge, or pass --simulate "
        'TYPE"\n'
    )


def test_daemon_of_the_user_is_found(neuron_ls: RunNeuronLs, short_path: Path, busy_host: Snapshot) -> None:
    (short_path / "neurontools").mkdir()
    running = MonitorServer(f"{short_path}/neurontools/neurond.sock", busy_host)
    try:
        assert neuron_ls().stdout == device_list_table(busy_host)
    finally:
        running.close()


@without_own_daemon
def test_daemon_that_goes_away_is_not_taken_for_none(
    neuron_ls: RunNeuronLs, short_path: Path, busy_host: Snapshot
) -> None:
    (short_path / "neurontools").mkdir()
    running = MonitorServer(f"{short_path}/neurontools/neurond.sock", busy_host)
    running.status = (grpc.StatusCode.UNAVAILABLE, "shutting down")
    try:
        done = neuron_ls()
    finally:
        running.close()
    assert (done.stdout, done.returncode) == ("", 12)
    assert "can't answer (shutting down)" in done.stderr


def test_named_socket_beats_the_environment(neuron_ls: RunNeuronLs, server: MonitorServer) -> None:
    done = neuron_ls("--socket", server.socket_path, NEURONTOOLS_SOCKET="/gone", NEURONTOOLS_SIMULATE="no-such-type")
    assert (done.stderr, done.returncode) == ("", 0)
    done = neuron_ls(NEURONTOOLS_SOCKET=server.socket_path, NEURONTOOLS_SIMULATE="no-such-type")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("status", "exit_code", "message"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, 4, "the monitor daemon at unix:{path} refuses: why\\x1b"),
        (grpc.StatusCode.NOT_FOUND, 6, "why\\x1b"),
        (
            grpc.StatusCode.UNAVAILABLE,
            12,
            "the monitor daemon at unix:{path} can't answer (why\\x1b); retry, or see its log",
        ),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            124,
            "the monitor daemon at unix:{path} gave no answer in time (why\\x1b); see its log, or restart it",
        ),
        (
            grpc.StatusCode.INTERNAL,
            1,
            "the monitor daemon at unix:{path} failed (INTERNAL: why\\x1b); is it of another version?",
        ),
    ],
)
def test_status_of_the_call(
    neuron_ls: RunNeuronLs, server: MonitorServer, status: grpc.StatusCode, exit_code: int, message: str
) -> None:
    server.status = (status, "why\x1b")
    done = neuron_ls("--socket", server.socket_path)
    expected = f"neuron-ls: {message.format(path=server.socket_path)}\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", expected, exit_code)


def test_no_access(short_path: Path, clean_environment: dict[str, str]) -> None:
    path = short_path / "locked" / "neurond.sock"
    path.parent.mkdir(mode=0o000)
    # A user without privileges can't read the project in root's home: import first, then step down.
    code = (
        "import contextlib, os, sys\n"
        "from neurontools.text import terminal\n"
        "from neurontools.rpc import ask; from neurontools.cli.ls import command\n"
        "from neurontools.rpc import wire\n"
        "os.geteuid() or os.setuid(65534)\n"
        "command.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--socket", str(path)],
        capture_output=True,
        text=True,
        env=clean_environment,
        check=False,
    )
    path.parent.chmod(0o700)
    assert (done.stdout, done.returncode) == ("", 4)
    assert done.stderr == (
        f"neuron-ls: no access to the monitor daemon at unix:{path} (permission denied); use an account that its "
        "socket admits\n"
    )


def test_no_answer_in_time(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TIMEOUT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{short_path}/silent.sock")
        silent.listen()
        with pytest.raises(UserError) as raised:
            command._Query({}).answer(f"{short_path}/silent.sock")
    assert raised.value.exit_code == 124


def test_a_stranger_at_the_socket(neuron_ls: RunNeuronLs, short_path: Path) -> None:
    """It doesn't speak HTTP/2, not to grpcio either."""
    path = f"{short_path}/web.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = neuron_ls("--socket", path)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert done.stdout == ""
    assert done.returncode in (12, 124)
    assert done.stderr.count("\n") == 1


def test_odd_server_is_asked_by_grpcio(neuron_ls: RunNeuronLs, server: MonitorServer, short_path: Path) -> None:
    """The first connection gets an odd answer; those after it are relayed to the real server."""
    path = f"{short_path}/odd.sock"

    def relay(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one end is gone, which ends the relay as well
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        first, _ = listener.accept()
        with first:
            assert first.recv(65536).startswith(b"PRI")
            first.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        second, _ = listener.accept()
        with second, socket.socket(socket.AF_UNIX) as real:
            real.connect(server.socket_path)
            back = threading.Thread(target=relay, args=(real, second))
            back.start()
            relay(second, real)
            back.join()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        done = neuron_ls("--socket", path)
        thread.join()
    assert (done.stdout, done.stderr, done.returncode) == (device_list_table(server.snapshot), "", 0)
