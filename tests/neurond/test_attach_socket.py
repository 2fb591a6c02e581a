"""The attach socket: who holds cores, for how long, and what a process can't do there."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.rpc.call import RpcError, Status
from tests.harness.attached_process import AttachedProcess
from tests.harness.hostile_user import needs_two_users
from tests.harness.paths import ATTACHED_CHILD
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon, file_limit
from tests.harness.waiting import HANG_SECONDS, wait_until

AttachChild = Callable[..., AttachedProcess]


@pytest.fixture
def daemon(shared_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The module's daemon, which nobody is attached to before and after a test."""
    yield shared_daemon
    wait_until(lambda: shared_daemon.snapshot().processes == ())


@pytest.fixture
def child() -> Iterator[AttachChild]:
    """Starts processes that attach, and ends them after."""
    with contextlib.ExitStack() as ending:
        yield lambda *arguments: ending.enter_context(AttachedProcess(*arguments))


def test_a_process_is_known_by_what_the_kernel_says(daemon: RunningDaemon, child: AttachChild) -> None:
    attached = child(daemon, "2")
    process = daemon.find(attached.pid)
    assert process is not None
    assert (process.pid, process.uid, process.synthetic) == (attached.pid, os.getuid(), False)
    assert process.core_indices == process.neuroncore_indices == (0, 1)
    assert process.device_indices == (0,)
    assert process.tag == str(attached.pid)
    assert process.command == f"{sys.executable} {ATTACHED_CHILD} {daemon.socket} 2"
    assert process.started_at_unix_seconds is not None
    assert process.attached_at_unix_seconds is not None
    assert process.started_at_unix_seconds < process.attached_at_unix_seconds
    assert daemon.owners()[:3] == (attached.pid, attached.pid, None)


@needs_two_users
def test_any_user_id_the_kernel_has(start_daemon: StartDaemon, child: AttachChild) -> None:
    daemon = start_daemon()
    Path(daemon.socket).parent.chmod(0o755)
    for path in (daemon.socket, f"{daemon.socket}.attach"):
        Path(path).chmod(0o666)
    uids = [65534, 2**31 + 5, 2**32 - 2]
    pids = [child(daemon, "1", str(uid)).pid for uid in uids]
    left_root = child(daemon, "1", "0", "65534").pid
    seen = {process.pid: (process.uid, process.user) for process in daemon.next_snapshot().processes}
    users = [(65534, "nobody"), *((uid, str(uid)) for uid in uids[1:]), (0, "root")]
    assert seen == dict(zip([*pids, left_root], users, strict=True)), "both as of the connection"


def test_a_process_without_cores_is_an_observer_of_all_devices(daemon: RunningDaemon, attached: Attachment) -> None:
    process = daemon.find(os.getpid())
    assert process is not None
    assert (process.core_indices, process.runtime_version) == ((), None)
    assert process.device_indices == tuple(range(16))
    assert set(daemon.owners()) == {None}


def test_ownership_is_published_without_waiting_for_a_tick(start_daemon: StartDaemon, child: AttachChild) -> None:
    """The interval is longer than the test may take: what the stream shows can't come from a tick."""
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "3600")
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        stream = client.watch(duration_seconds=HANG_SECONDS)

        def next_owners() -> set[int | None]:
            return {core.owner_pid for core in next(stream).cores}

        assert next_owners() == {None}
        attached = child(daemon, "32")
        while next_owners() != {attached.pid}:
            pass
        attached.end()
        while next_owners() != {None}:
            pass


def test_forked_children_hold_no_cores_and_free_none(daemon: RunningDaemon, child: AttachChild) -> None:
    attached = child(daemon, "2")
    os.kill(attached.fork(), signal.SIGKILL)
    daemon.next_snapshot()
    assert daemon.owners()[:2] == (attached.pid,) * 2
    heir = attached.fork()  # it keeps the connection open
    try:
        attached.end()
        wait_until(lambda: daemon.owners() == (None,) * 32)
        os.kill(heir, 0)
        assert daemon.find(attached.pid) is None
    finally:
        os.kill(heir, signal.SIGKILL)


def test_a_token_is_worth_nothing_once_its_connection_is_gone(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.attach()
    assert daemon.owners() == (os.getpid(),) * 32
    attached.close()
    wait_until(lambda: daemon.owners() == (None,) * 32)
    assert daemon.find(os.getpid()) is None
    with pytest.raises(RpcError, match="connect to the attach socket") as refused:
        attached.attach()
    assert refused.value.code == Status.UNAUTHENTICATED


def test_as_many_connections_as_a_process_may_have(daemon: RunningDaemon) -> None:
    before = daemon.descriptor_count()
    attachments = [Attachment(daemon) for _ in range(16)]
    tokens = {attachment.token for attachment in attachments}
    assert len(tokens) == 16
    assert all(len(token) == 32 and int(token, 16) for token in tokens)
    refused = Attachment(daemon)
    refused.close()
    assert refused.line == (
        f"error: PID {os.getpid()} has 16 connections to the attach socket open, which is its limit; end some of them\n"
    )
    (process,) = daemon.snapshot().processes
    assert process.pid == os.getpid(), "one process, however often it is connected"
    for attachment in attachments:
        attachment.close()
    wait_until(lambda: daemon.descriptor_count() <= before)


def test_a_connection_that_sends_garbage_stays_what_it_is(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.attach(core_count=1)
    attached.connection.sendall(os.urandom(2**20))
    daemon.next_snapshot()
    assert daemon.owners()[0] == os.getpid()


@pytest.mark.slow
def test_a_flood_of_connections_is_refused_and_leaves_room_for_others(
    start_daemon: StartDaemon, child: AttachChild
) -> None:
    """With 200 files, 25 processes may be attached, and none of them takes more than a quarter of that."""
    limited = start_daemon(prefix=file_limit(200))
    before = limited.descriptor_count()
    attachments = [Attachment(limited) for _ in range(120)]
    taken = [attachment for attachment in attachments if not attachment.line.startswith("error: ")]
    assert len(taken) == 6
    assert attachments[-1].line.startswith(f"error: PID {os.getpid()} has 6 connections to the attach socket open")
    assert child(limited, "1").token, "another process has its own share"
    assert limited.log.count("attach refused") == 1, "one line, and not one each"
    for attachment in attachments[6:]:
        assert attachment.connection.recv(1) == b"", "a refused connection is closed"
        attachment.close()
    taken[0].close()

    def attach_again() -> Attachment | None:
        again = Attachment(limited)
        if again.line.startswith("error: "):
            again.close()
            return None
        return again

    taken.append(wait_until(attach_again))
    for attachment in taken:
        attachment.close()
    wait_until(lambda: limited.descriptor_count() <= before + 2)
