"""Requests for profiles: who may ask, what the process gets, and what comes of those that can't be passed on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from neurontools.errors import EXIT_FAILURE, EXIT_NO_DAEMON, EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_TIMED_OUT, UserError
from neurontools.rpc.profile_request import AskedProfile
from neurontools.sockets.descriptors import receive
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

PID = os.getpid()
ASK_AS_OTHER = """
import os, sys
from neurontools.errors import UserError
from neurontools.rpc.profile_request import AskedProfile
os.setuid(int(sys.argv[3]))
try:
    AskedProfile.ask(sys.argv[1], int(sys.argv[2]), 1.0, None)
except UserError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


@pytest.fixture
def process(attached: Attachment) -> Attachment:
    """This process, which holds a core and takes requests for profiles."""
    attached.attach(core_count=1)
    attached.connection.sendall(b"profiles\n")
    return attached


def asked_of(process: Attachment) -> tuple[bytes, socket.socket]:
    """The next request that a process gets: its line, and the channel to who asks."""
    line, descriptor = receive(process.connection, 4096)
    assert descriptor is not None
    return line, socket.socket(fileno=descriptor)


def refused(daemon: RunningDaemon, pid: int = PID) -> tuple[int, str]:
    with pytest.raises(UserError) as caught:
        AskedProfile.ask(daemon.socket, pid, 1.0, None).close()
    return caught.value.exit_code, str(caught.value)


def test_the_process_gets_the_request_with_a_channel_to_who_asks(daemon: RunningDaemon, process: Attachment) -> None:
    with AskedProfile.ask(daemon.socket, PID, 2.5, 7) as asked:
        line, channel = asked_of(process)
        with channel:
            assert line == b"profile 2.500000 7\n"
            channel.sendall(b"asked\nthe profile")
            asked.taken(HANG_SECONDS)
            assert asked.read(HANG_SECONDS) == b"the profile"
        assert asked.read(HANG_SECONDS) == b""


def test_the_end_of_who_asks_is_the_end_of_the_channel(daemon: RunningDaemon, process: Attachment) -> None:
    asked = AskedProfile.ask(daemon.socket, PID, 1.0, None)
    _, channel = asked_of(process)
    asked.close()
    with channel:
        assert channel.recv(1) == b""


def test_a_process_that_refuses_says_why(daemon: RunningDaemon, process: Attachment) -> None:
    with AskedProfile.ask(daemon.socket, PID, 1.0, None) as asked:
        _, channel = asked_of(process)
        with channel:
            channel.sendall(b"failed it \x1b[31mrests\n")
        with pytest.raises(UserError, match="rests"):
            asked.taken(HANG_SECONDS)


def test_a_process_that_ends_before_it_answers_is_told(daemon: RunningDaemon, process: Attachment) -> None:
    with AskedProfile.ask(daemon.socket, PID, 1.0, None) as asked:
        asked_of(process)[1].close()
        with pytest.raises(UserError, match=f"PID {PID} ended before") as caught:
            asked.taken(HANG_SECONDS)
    assert caught.value.exit_code == EXIT_FAILURE


def test_a_process_that_does_not_read_is_told(daemon: RunningDaemon, process: Attachment) -> None:
    with AskedProfile.ask(daemon.socket, PID, 1.0, None) as asked, pytest.raises(UserError, match="stopped") as caught:
        asked.taken(0.01)
    assert caught.value.exit_code == EXIT_TIMED_OUT


def test_who_holds_no_cores_can_not_be_profiled(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.connection.sendall(b"profiles\n")
    assert refused(daemon) == (
        EXIT_NOT_FOUND,
        f"PID {PID} holds no NeuronCores of this daemon; neuron-ls shows who does, and under which PID",
    )


def test_a_runtime_that_takes_no_requests_is_told(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.attach(core_count=1, runtime_version="0.0.9")
    code, text = refused(daemon)
    assert code == EXIT_FAILURE
    assert "(version 0.0.9) takes no profiles on request" in text


def test_invented_processes_have_nothing_to_profile(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady")
    invented = wait_until(lambda: next((each.pid for each in daemon.snapshot().processes if each.synthetic), None))
    code, text = refused(daemon, invented)
    assert code == EXIT_FAILURE
    assert "invented by the synthetic load" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_its_own_user_and_root_may_ask(daemon: RunningDaemon, process: Attachment) -> None:
    for path in (daemon.socket, f"{daemon.socket}.attach"):
        Path(path).chmod(0o666)
    Path(daemon.socket).parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", ASK_AS_OTHER, daemon.socket, str(PID), "4321"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == (
        f"{EXIT_PERMISSION} PID {PID} is of user 0, and you are user 4321; use that account, or root\n"
    )
    with AskedProfile.ask(daemon.socket, PID, 1.0, None):  # what comes first is the request of root
        line, channel = asked_of(process)
        channel.close()
    assert line.startswith(b"profile ")


def test_rubbish_leaves_no_descriptor_behind(daemon: RunningDaemon, process: Attachment) -> None:
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


class OlderDaemon:
    """A daemon that has an attach socket and passes over lines that it doesn't know, as those before these requests."""

    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "old.sock")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(f"{self.socket}.attach")
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            connection, _ = self._listening.accept()
            with connection:
                connection.sendall(b"0123456789abcdef0123456789abcdef\n")
                while connection.recv(4096):
                    pass


@pytest.fixture
def older_daemon(socket_directory: Path) -> Iterator[OlderDaemon]:
    daemon = OlderDaemon(socket_directory)
    yield daemon
    daemon.close()


def test_a_daemon_of_before_these_requests_is_told(older_daemon: OlderDaemon) -> None:
    with pytest.raises(UserError, match="is of a version that passes on no such requests; update it"):
        AskedProfile.ask(older_daemon.socket, PID, 1.0, None)


def test_no_daemon_is_told_as_by_every_command(socket_directory: Path) -> None:
    with pytest.raises(UserError, match="no monitor daemon at unix:") as caught:
        AskedProfile.ask(str(socket_directory / "none.sock"), PID, 1.0, None)
    assert caught.value.exit_code == EXIT_NO_DAEMON
