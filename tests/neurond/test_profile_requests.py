"""Requests for profiles: who may ask, what the process gets, and what becomes of those that can't be passed on."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from neurontools.rpc.profile_protocol import receive_descriptor
from neurontools.rpc.profile_request import RequestedProfile
from neurontools.util.errors import (
    EXIT_FAILURE,
    EXIT_NO_DAEMON,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    EXIT_TIMED_OUT,
    UserError,
)
from tests.harness.command import calls
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon, connected
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until

PID = os.getpid()
ASK_AS_OTHER = """
import os, sys
from neurontools.util.errors import UserError
from neurontools.rpc.profile_request import RequestedProfile
os.setuid(int(sys.argv[3]))
try:
    RequestedProfile.request(sys.argv[1], int(sys.argv[2]), 1.0, None)
except UserError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


@pytest.fixture
def attached(shared_daemon: RunningDaemon) -> Iterator[Attachment]:
    with connected(shared_daemon) as attachment:
        yield attachment


@pytest.fixture
def process(attached: Attachment) -> Attachment:
    """This process, which holds a core and takes requests for profiles."""
    attached.attach(core_count=1)
    attached.connection.sendall(b"profiles\n")
    return attached


def asked_of(process: Attachment) -> tuple[bytes, socket.socket]:
    """The next request that a process gets: its line, and the channel to who asks."""
    line, descriptor = receive_descriptor(process.connection, 4096)
    assert descriptor is not None
    return line, socket.socket(fileno=descriptor)


def refused(path: str, pid: int = PID) -> tuple[int, str]:
    with pytest.raises(UserError) as caught:
        RequestedProfile.request(path, pid, 1.0, None).close()
    return caught.value.exit_code, str(caught.value)


def test_the_process_gets_the_request_with_a_channel_to_who_asks(process: Attachment) -> None:
    path = process.daemon.socket
    with RequestedProfile.request(path, PID, 2.5, 7) as asked:
        line, channel = asked_of(process)
        with channel:
            assert line == b"profile 2.500000 7\n"
            channel.sendall(b"asked\nthe profile")
            asked.wait_accepted(HANG_SECONDS)
            assert asked.read(HANG_SECONDS) == b"the profile"
        assert asked.read(HANG_SECONDS) == b""
    given_up = RequestedProfile.request(path, PID, 1.0, None)
    _, channel = asked_of(process)
    given_up.close()
    with channel:
        assert channel.recv(1) == b"", "the end of who asks is the end of the channel"


def test_a_process_that_refuses_ends_or_does_not_read_is_told(process: Attachment) -> None:
    path = process.daemon.socket
    with RequestedProfile.request(path, PID, 1.0, None) as asked:
        _, channel = asked_of(process)
        with channel:
            channel.sendall(b"failed it \x1b[31mrests\n")
        with pytest.raises(UserError, match="rests"):
            asked.wait_accepted(HANG_SECONDS)
    with RequestedProfile.request(path, PID, 1.0, None) as asked:
        asked_of(process)[1].close()
        with pytest.raises(UserError, match=f"PID {PID} ended before") as caught:
            asked.wait_accepted(HANG_SECONDS)
    assert caught.value.exit_code == EXIT_FAILURE
    with RequestedProfile.request(path, PID, 1.0, None) as asked, pytest.raises(UserError, match="stopped") as caught:
        asked.wait_accepted(0.01)
    assert caught.value.exit_code == EXIT_TIMED_OUT


@pytest.mark.parametrize(
    ("answer", "most_sent", "error"),
    [
        (b"asked\n", 3 << 20, "its profile has more than 1.0 MiB"),
        (b"", 1 << 20, "sends something else than a profile"),
    ],
)
def test_a_process_that_sends_without_end_is_cut_off(
    process: Attachment, tmp_path: Path, answer: bytes, most_sent: int, error: str
) -> None:
    sent = [0]

    def flood() -> None:
        _, channel = asked_of(process)
        with channel, suppress(ConnectionError):
            channel.settimeout(HANG_SECONDS)
            channel.sendall(answer)
            while sent[0] < 1 << 30:
                channel.sendall(bytes(1 << 16))
                sent[0] += 1 << 16

    flooding = threading.Thread(target=flood)
    flooding.start()
    capture = calls("neuron-profile", {"NEURONTOOLS_SOCKET": process.daemon.socket})
    done = capture("capture", "--pid", str(PID), "--max-size", "1", "-o", str(tmp_path / "made"))
    flooding.join()
    assert (done.returncode, done.stdout) == (1, "")
    assert error in done.stderr
    assert sent[0] < most_sent, "what was read, and what the socket holds"
    assert not (tmp_path / "made").exists()


def test_processes_without_cores_or_requests_can_not_be_profiled(
    attached: Attachment, start_daemon: StartDaemon, socket_directory: Path
) -> None:
    attached.connection.sendall(b"profiles\n")
    assert refused(attached.daemon.socket) == (
        EXIT_NOT_FOUND,
        f"PID {PID} holds no NeuronCores of this daemon; neuron-ls shows the PIDs that do",
    )
    with closing(Attachment(attached.daemon)) as older:
        older.attach(core_count=1, runtime_version="0.0.9")
        code, text = refused(older.daemon.socket)
    assert (code, "(version 0.0.9) takes no profiles on request" in text) == (EXIT_FAILURE, True)
    loaded = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady")
    invented = wait_until(lambda: next((each.pid for each in loaded.snapshot().processes if each.synthetic), None))
    code, text = refused(loaded.socket, invented)
    assert (code, "belongs to the synthetic load" in text) == (EXIT_FAILURE, True)
    code, text = refused(str(socket_directory / "none.sock"))
    assert (code, "no monitor daemon at unix:" in text) == (EXIT_NO_DAEMON, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_its_own_user_and_root_may_ask(process: Attachment) -> None:
    path = process.daemon.socket
    for each in (path, f"{path}.attach"):
        Path(each).chmod(0o666)
    Path(path).parent.chmod(0o755)
    done = run_to_end([sys.executable, "-c", ASK_AS_OTHER, path, str(PID), "4321"])
    assert done.stderr == (
        f"{EXIT_PERMISSION} PID {PID} belongs to user 0, you are user 4321; use that account, or root\n"
    )
    with RequestedProfile.request(path, PID, 1.0, None):  # what comes first is the request of root
        line, channel = asked_of(process)
        channel.close()
    assert line.startswith(b"profile ")


def test_rubbish_leaves_no_descriptor_behind(process: Attachment) -> None:
    daemon = process.daemon
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(HANG_SECONDS)
        asker.connect(f"{daemon.socket}.attach")
        asker.recv(64)
        daemon.next_snapshot()
        before = daemon.descriptor_count()
        for line in (
            b"profile\n",
            b"profile 1\n",
            b"profile %d nan 0\n" % PID,
            b"profile %d 1 -1\n" % PID,
            b"profile 99999999999999999999 1 1\n",
            b"\xff\n",
            b"no line at all",
            b"\n",
        ):
            for _ in range(20):
                socket.send_fds(asker, [line], [asker.fileno(), asker.fileno(), asker.fileno()])
        with Path("/dev/null").open() as file:
            socket.send_fds(asker, [b"profile %d 1.0 0\n" % PID], [file.fileno()])
        said = b""
        while said.count(b"\n") < 4 * 20 + 1:
            said += asker.recv(4096)
        assert said.count(b"refused unable the daemon doesn't understand") == 4 * 20
        assert said.endswith(b"refused unable no socket came with the request\n")
        wait_until(lambda: daemon.descriptor_count() <= before)


@pytest.mark.slow  # who asks gives the daemon two seconds for its last word
def test_a_daemon_that_knows_no_such_requests_is_told(socket_directory: Path) -> None:
    path = str(socket_directory / "old.sock")

    def pass_over_lines() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"0123456789abcdef0123456789abcdef\n")
                while connection.recv(4096):
                    pass

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{path}.attach")
        listener.listen()
        serving = threading.Thread(target=pass_over_lines)
        serving.start()
        code, text = refused(path)
        serving.join()
    assert (code, "is of a version that passes on no such requests; update it" in text) == (EXIT_FAILURE, True)
