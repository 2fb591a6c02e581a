"""The blocking client against a real daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neurontools import client
from neurontools.client import Client, Closed, NoDaemon, Recording, TimedOut, connect, daemon_client
from neurontools.client.recording import RecordingWriter
from neurontools.rpc import http2
from neurontools.util.errors import EXIT_NO_DAEMON, EXIT_PERMISSION, UserError
from tests.harness.raw_server import HEADERS, VALID, FrameReader, RawServer
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


def test_reads_snapshots_their_stream_and_their_past(start_daemon: StartDaemon) -> None:
    running = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.05")
    with Client(running.socket, timeout_seconds=HANG_SECONDS) as daemon:
        first = daemon.snapshot()
        assert first.instance.instance_type == "trn1.32xlarge"
        assert len(first.processes) == 32
        watch = daemon.watch()
        sequences = [next(watch).sequence for _ in range(4)]
        assert sequences == sorted(set(sequences))
        past = [snapshot.sequence for snapshot in daemon.history()]
        assert past == sorted(past)
        assert past[-1] >= sequences[-1]
        assert next(snapshot.sequence for snapshot in daemon.history(after_sequence=past[-2])) == past[-1]


def test_only_a_watch_has_no_deadline(tmp_path: Path) -> None:
    server = RawServer(str(tmp_path / "n.sock"))
    deadlines: list[bytes | None] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        while True:
            kind, _, _, payload = reader.next()
            if kind == HEADERS:
                deadlines.append(dict(http2.decode_headers(payload)).get(b"grpc-timeout"))
                connection.sendall(VALID)

    server.behave = behave
    with Client(server.path, timeout_seconds=HANG_SECONDS) as client:
        assert next(client.watch_messages()) == b"fine"
        assert next(client.history_messages()) == b"fine"
        assert client.snapshot_message() == b"fine"
    server.close()
    assert deadlines == [None, b"300000m", b"300000m"]


def test_close_ends_a_stream_that_another_thread_waits_for(shared_daemon: RunningDaemon) -> None:
    daemon = Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS)
    watch = daemon.watch(3600)
    next(watch)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(next, watch)
        daemon.close()
        with pytest.raises(Closed):
            waiting.result(HANG_SECONDS)
    with pytest.raises(Closed):
        daemon.snapshot()


def test_a_missing_daemon_is_told_and_found_when_it_comes(start_daemon: StartDaemon, socket_directory: Path) -> None:
    with Client(str(socket_directory / "n.sock"), timeout_seconds=HANG_SECONDS) as daemon:
        with pytest.raises(NoDaemon, match="no monitor daemon at unix:"):
            daemon.snapshot()
        running = start_daemon()
        assert daemon.snapshot().daemon_pid == running.pid
        watch = daemon.watch()
        next(watch)
        running.stop()
        with pytest.raises(NoDaemon):
            list(watch)


def test_the_daemon_that_the_commands_ask_is_found(
    shared_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, socket_directory: Path
) -> None:
    monkeypatch.setenv("NEURONTOOLS_SOCKET", f"unix:{shared_daemon.socket}")
    with connect(timeout_seconds=HANG_SECONDS) as daemon:
        assert repr(daemon) == f"<Client of unix:{shared_daemon.socket}>"
        assert daemon.snapshot().daemon_pid == shared_daemon.pid
    assert repr(daemon).endswith(", closed>")
    monkeypatch.delenv("NEURONTOOLS_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(socket_directory))
    (socket_directory / "neurontools").mkdir()
    (socket_directory / "neurontools/neurond.sock").symlink_to(shared_daemon.socket)
    with connect(timeout_seconds=HANG_SECONDS) as daemon:
        assert daemon.socket_path == f"{socket_directory}/neurontools/neurond.sock"
        assert daemon.snapshot().daemon_pid == shared_daemon.pid


def test_no_daemon_is_told_with_cause_and_next_step(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon) as raised:
        connect("/nowhere/n.sock")
    assert str(raised.value) == (
        "no monitor daemon at unix:/nowhere/n.sock (no such file or directory); "
        'start one with "neurond --socket /nowhere/n.sock --simulate trn1.32xlarge"'
    )
    assert (raised.value.exit_code, raised.value.is_absent) == (EXIT_NO_DAEMON, True)
    with pytest.raises(UserError, match="socket: the socket path is empty"):
        connect("")


@pytest.mark.skipif(os.geteuid() != 0, reason="steps down from root")
def test_a_daemon_that_may_not_be_asked_is_not_called_absent(shared_daemon: RunningDaemon) -> None:
    code = (
        "import os, sys\n"
        "from neurontools.client import NoDaemon, connect\n"
        "os.setuid(65534)\n"
        "try: connect(sys.argv[1])\n"
        "except NoDaemon as error: print(error.exit_code, error.is_absent, error)\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code, shared_daemon.socket], text=True)
    assert told.startswith(f"{EXIT_PERMISSION} False no access to the monitor daemon at unix:{shared_daemon.socket} (")


def test_a_watch_ends_when_its_time_is_over(shared_daemon: RunningDaemon) -> None:
    with connect(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as daemon:
        assert list(daemon.watch(duration_seconds=0)) == []
        wait_until(lambda: len({snapshot.sequence for snapshot in daemon.watch(duration_seconds=0.2)}) > 1)


def test_a_stream_goes_on_beyond_the_longest_call(
    shared_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_client, "MAX_TIMEOUT_SECONDS", 0.1)
    with connect(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as daemon:
        watch = daemon.watch(duration_seconds=HANG_SECONDS)
        first = next(watch)
        while next(watch).taken_at_seconds < first.taken_at_seconds + 0.3:
            pass


def test_a_daemon_that_stands_still_gives_no_answer_in_time(start_daemon: StartDaemon) -> None:
    running = start_daemon()
    with connect(running.socket, timeout_seconds=0.2) as daemon:
        running.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimedOut, match="gave no answer in time"):
            daemon.snapshot()
        running.process.send_signal(signal.SIGCONT)


def test_a_snapshot_of_a_moment_ago(shared_daemon: RunningDaemon) -> None:
    with connect(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as daemon:
        first = daemon.snapshot()
        while daemon.snapshot().taken_at_seconds < first.taken_at_seconds + 0.3:
            pass
        past = daemon.snapshot(age_seconds=0.2)
        assert past.taken_at_seconds < daemon.snapshot().taken_at_seconds - 0.15
        oldest = next(daemon.history()).sequence
        assert oldest <= daemon.snapshot(age_seconds=3600).sequence < past.sequence, "as far back as there is one"


def test_a_recording_is_read_like_a_daemon(shared_daemon: RunningDaemon, tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    writer = RecordingWriter(str(path))
    taken = []
    with connect(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as daemon:
        for message in daemon.watch_messages():
            writer.write(message)
            taken.append(client.read_snapshot(message))
            if len(taken) == 10:
                break
    recording = Recording(path)
    assert repr(recording) == f"<Recording '{path}'>"
    assert [snapshot.sequence for snapshot in recording.history()] == [snapshot.sequence for snapshot in taken]
    assert "has no regular end" in recording.trouble
    writer.close()
    with recording:
        assert recording.snapshot().sequence == taken[-1].sequence
        assert recording.trouble == ""
        after = [snapshot.sequence for snapshot in recording.history(after_sequence=taken[6].sequence)]
        assert after == [snapshot.sequence for snapshot in taken[7:]]
        before, then, last = (taken[number].taken_at_unix_seconds for number in (4, 5, -1))
        since = last - (before + then) / 2
        assert next(recording.history(since)).sequence == taken[5].sequence


def test_what_is_no_recording_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file; name a recording"):
        Recording(tmp_path / "none.rec")
    (tmp_path / "empty.rec").touch()
    with pytest.raises(UserError, match="not a recording of neuron-top"):
        Recording(tmp_path / "empty.rec")


@pytest.mark.slow
def test_who_is_slow_to_read_the_past_gets_all_of_it(start_daemon: StartDaemon) -> None:
    running = start_daemon("--simulate", "trn2.48xlarge", "--load", "steady", "--interval", "0.02")
    with connect(running.socket, timeout_seconds=HANG_SECONDS) as daemon:
        size_bytes = 0
        for message in daemon.watch_messages():
            size_bytes += len(message)
            if size_bytes > 2**19:  # more than a socket holds
                break
        latest = client.read_snapshot(message).sequence
        past = daemon.history()
        next(past)
        running.stop(signal.SIGKILL)
        assert list(past)[-1].sequence >= latest
