"""Many hosts watched at once: real daemons, those that die, and servers that say anything."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.fleet.feed import DirectFeed, interval_for, silence_seconds
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.states import HostLink, HostState
from neurontools.testing import SimulatedFleet
from tests.harness import raw_server
from tests.harness.fleet import ssh_environment
from tests.harness.older_daemon import OlderDaemon
from tests.harness.raw_server import RawServer
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@contextmanager
def watching(*places: HostAddress, interval_seconds: float = 0.1) -> Iterator[DirectFeed]:
    with DirectFeed(places, interval_seconds) as feed:
        feed.start()
        assert feed.wait_settled(HANG_SECONDS)
        yield feed


def at(path: str, name: str = "a") -> HostAddress:
    return HostAddress(name, Reach.SOCKET, path)


def state_of(feed: DirectFeed, name: str) -> HostState:
    return next(state for state in feed.states if state.place.name == name)


def test_the_rate_follows_the_number_of_hosts_and_who_seldom_takes_snapshots_may_be_silent_for_longer() -> None:
    assert [interval_for(count) for count in (1, 10, 11, 100, 200, 1000)] == [1.0, 1.0, 2.0, 3.0, 5.0, 10.0]
    intervals = ((1.0, 1.0), (5.0, 1.0), (5.0, 20.0), (5.0, 1e300))
    assert [silence_seconds(*each) for each in intervals] == [10.0, 15.0, 60.0, 10_800.0]


def test_there_may_be_four_open_files_a_host() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        with watching(*(at("/nowhere/n.sock", str(number)) for number in range(100))):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(656, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_host_that_dies_is_lost_alone_and_keeps_what_was_known() -> None:
    with SimulatedFleet(3, mix="inf2.xlarge", interval_seconds=0.1, processes=3) as fleet:
        with watching(*fleet.places) as feed:
            assert {state.link for state in feed.states} == {HostLink.LIVE}
            fleet.stop("host-001")
            wait_until(lambda: state_of(feed, "host-001").link is HostLink.LOST)
            gone = state_of(feed, "host-001")
            assert gone.summary is not None
            assert gone.loss_reason
            assert gone.severity is None
            since = gone.received_at_seconds
            assert since is not None
            wait_until(lambda: (state_of(feed, "host-000").received_at_seconds or 0) > since)
            assert gone.age_seconds(since + 7.0) == 7.0


@pytest.mark.slow
def test_a_host_that_stands_still_is_no_stall_and_comes_back() -> None:
    with SimulatedFleet(2, mix="inf2.xlarge", interval_seconds=0.1, processes=2) as fleet:
        with watching(*fleet.places) as feed:
            fleet.stop("host-000", signal.SIGSTOP)
            before = state_of(feed, "host-000").received_at_seconds
            wait_until(lambda: (state_of(feed, "host-001").received_at_seconds or 0) > (before or 0) + 0.5)
            wait_until(lambda: state_of(feed, "host-000").link is HostLink.LOST)
            assert "no data for" in state_of(feed, "host-000").loss_reason
            fleet.stop("host-000", signal.SIGCONT)
            wait_until(lambda: state_of(feed, "host-000").link is HostLink.LIVE)


def test_one_that_is_not_there_is_found_when_it_comes(socket_directory: Path, shared_daemon: RunningDaemon) -> None:
    path = socket_directory / "later.sock"
    with watching(at(str(path))) as feed:
        state = state_of(feed, "a")
        assert (state.link, state.loss_reason, state.summary) == (
            HostLink.LOST,
            "no daemon: no such file or directory",
            None,
        )
        path.symlink_to(shared_daemon.socket)
        wait_until(lambda: state_of(feed, "a").link is HostLink.LIVE)
    older = OlderDaemon(str(socket_directory / "old.sock"))
    try:
        with watching(at(str(socket_directory / "old.sock"))) as feed:
            assert state_of(feed, "a").loss_reason == "its neurond has no summaries; update it"
    finally:
        older.close()


BEGUN = raw_server.GREETING + raw_server.START
HUGE = BEGUN + raw_server.frame(raw_server.DATA, b"\0" + (2**24).to_bytes(4), 0, 1)
GARBAGE = BEGUN + raw_server.frame(raw_server.DATA, raw_server.message(b"\xff" * 9), 0, 1)
# a summary whose taken_at_unix_seconds is no number
NAN = BEGUN + raw_server.frame(raw_server.DATA, raw_server.message(b"\x0a\x09\x59\0\0\0\0\0\0\xf8\x7f"), 0, 1)


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n" + b"x" * 64, "its answer can't be read"),
        (b"", "the server closed the connection|connection lost"),
        (raw_server.VALID, "its answer can't be read"),
        (HUGE, "more than the 32768 allowed"),
        *((said, "its answer can't be read") for said in (GARBAGE, NAN)),
        (raw_server.GREETING + raw_server.frame(raw_server.PING, b"12345678") * 100_000, "takes nothing"),
        (raw_server.trailers_only((b"grpc-status", b"13"), (b"grpc-message", b"\x1b[2Jno")), r"\x1b[2Jno"),
    ],
)
def test_whatever_a_host_says_is_a_line_of_its_row(
    socket_directory: Path, shared_daemon: RunningDaemon, said: bytes, trouble: str
) -> None:
    path = str(socket_directory / "raw.sock")
    server = RawServer(path)
    server.reply_with(said)
    try:
        with watching(at(path, "raw"), at(shared_daemon.socket, "good")) as feed:
            raw = state_of(feed, "raw")
            assert raw.link is HostLink.LOST
            assert any(part in raw.loss_reason for part in trouble.split("|"))
            assert raw.loss_reason.isprintable()
            assert state_of(feed, "good").link is HostLink.LIVE
    finally:
        server.close()


def test_hosts_by_ssh_and_why_one_is_not_reached(
    socket_directory: Path, shared_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ssh_environment(socket_directory, shared_daemon.socket).items():
        monkeypatch.setenv(name, value)
    places = [HostAddress(name, Reach.SSH, name) for name in ("one", "two", "refused", "denied")]
    with watching(*places) as feed:
        assert state_of(feed, "one").link is state_of(feed, "two").link is HostLink.LIVE
        assert state_of(feed, "refused").loss_reason == "ssh: connect to host refused port 22: Connection refused"
        assert state_of(feed, "denied").loss_reason == r"\x1b[2Jroot@denied: Permission denied (publickey)."
        path = feed.socket_path("one")
        assert path is not None
        with Client(path, timeout_seconds=HANG_SECONDS) as client:
            assert client.snapshot().daemon_pid == shared_daemon.pid
    assert not Path(path).exists()
    for name, value in ssh_environment(socket_directory, "/nowhere/neurond.sock").items():
        monkeypatch.setenv(name, value)
    with watching(HostAddress("one", Reach.SSH, "one")) as feed:
        assert "no monitor daemon at unix:/nowhere/neurond.sock" in state_of(feed, "one").loss_reason
    monkeypatch.undo()


def test_it_ends_at_once_while_hosts_are_silent(socket_directory: Path) -> None:
    path = str(socket_directory / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        feed = DirectFeed([at(path)])
        feed.start()
        wait_until(lambda: feed.states[0].link is HostLink.CONNECTING)
        feed.close()
        feed.close()
