"""One peer does its worst for a while; others are answered, and the daemon is afterwards as it was before."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from neurond.peers.limits import Kind, limits_for

from neurontools.errors import UserError
from neurontools.rpc import call
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.ask import ask
from neurontools.rpc.call import CallError, RpcError, Status
from neurontools.rpc.report_limits import MOST_MODELS
from neurontools.rpc.stream import StreamConnection
from tests.harness import hostile_peer
from tests.harness.hostile_peer import ATTACKS, opened, request
from tests.harness.running_daemon import MONITOR, Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

PEER = Path(hostile_peer.__file__)
ANSWERS = 12
GROWTH_BYTES = 10 * 2**20


@contextmanager
def attack(daemon: RunningDaemon, name: str) -> Iterator[None]:
    """A process that attacks the daemon while the context lasts."""
    with subprocess.Popen(
        [sys.executable, str(PEER), daemon.socket, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == b"begun\n"
        yield
        assert peer.communicate()[0].startswith(b"{"), "it attacked to the end"


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_answered_while_one_peer_does_its_worst(daemon: RunningDaemon, name: str) -> None:
    daemon.next_snapshot()
    files, before_bytes = daemon.descriptor_count(), resident_bytes(daemon.pid)
    with attack(daemon, name):
        for _ in range(ANSWERS):
            assert ask(daemon.socket, f"{MONITOR}/RenderDeviceList", b"", 30)
        attached = Attachment(daemon)
        assert attached.attach(core_count=1).pid == os.getpid()
        attached.close()
    wait_until(lambda: daemon.descriptor_count() <= files + 1)
    wait_until(lambda: resident_bytes(daemon.pid) < before_bytes + GROWTH_BYTES)
    assert daemon.stop() == 0
    assert len(daemon.log.splitlines()) <= 4, daemon.log


def test_who_is_not_let_in_is_told_why(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(file_limit=64)
    flood = []
    for _ in range(8):
        flood.append(socket.socket(socket.AF_UNIX))
        flood[-1].connect(daemon.socket)
    with pytest.raises(UserError) as refused:
        ask(daemon.socket, f"{MONITOR}/GetSnapshot", b"", 30)
    assert re.fullmatch(
        rf"the monitor daemon at unix:{daemon.socket} can't answer \(PID {os.getpid()} has \d connections open, "
        r"as many as it may; end some of them\); retry, or see its log",
        str(refused.value),
    )
    for connection in flood:
        connection.close()
    assert wait_until(lambda: answered(daemon.socket))


def test_connections_that_end_while_they_have_to_wait_take_nobody_s_place(daemon: RunningDaemon) -> None:
    """One process asks for far more than it may at once, on connections that it closes without reading an answer."""
    limits = limits_for(2**20)
    calls = b"".join(request(stream_id, "GetSnapshot") for stream_id in range(1, 41, 2))
    for _ in range(2 * limits.open[Kind.CONNECTION].by_process):
        with opened(daemon.socket) as connection:
            connection.sendall(calls)
    for _ in range(limits.open[Kind.CONNECTION].by_process):
        assert ask(daemon.socket, f"{MONITOR}/GetSnapshot", b"", HANG_SECONDS)


def answered(path: str) -> bytes | None:
    try:
        return call.call(path, f"{MONITOR}/GetSnapshot", b"", timeout_seconds=30)
    except RpcError:
        return None


def test_a_fifth_reader_of_the_past_is_refused(daemon: RunningDaemon) -> None:
    stalled: list[socket.socket] = []

    def refused() -> str | None:
        try:
            for _ in StreamConnection(daemon.socket, 30).messages(f"{MONITOR}/ListHistory", b"", timeout_seconds=30):
                pass
        except RpcError as error:
            return error.details
        return None

    def refused_beside_stalled() -> str | None:
        stalled.append(opened(daemon.socket, window_bytes=0))
        stalled[-1].sendall(b"".join(request(number, "ListHistory") for number in (1, 3, 5, 7)))
        return refused()

    text = wait_until(refused_beside_stalled)
    assert text == f"PID {os.getpid()} has 4 readers of the past open, as many as it may; end some of them"
    for connection in stalled:
        connection.close()
    wait_until(lambda: refused() is None)


def test_out_of_descriptors_is_one_line_and_passes(daemon: RunningDaemon) -> None:
    daemon.snapshot()
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path(f"/proc/{daemon.pid}/fd").iterdir())
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    told = ""
    with ExitStack() as crowd:  # it stays, and takes what numbers are left
        for path in (daemon.socket, f"{daemon.socket}.attach"):
            for _ in range(40):
                connection = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                connection.settimeout(HANG_SECONDS)
                connection.connect(path)
                with suppress(ConnectionResetError):
                    told += connection.recv(4096).decode("latin-1")
        assert os.strerror(errno.EMFILE) in told
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
    assert wait_until(lambda: answered(daemon.socket))
    attached = Attachment(daemon)
    assert attached.attach(core_count=1).pid == os.getpid()
    attached.close()
    lines = [line for line in daemon.log.splitlines() if os.strerror(errno.EMFILE) in line]
    assert 1 <= len(lines) <= 3, daemon.log


def test_a_stop_ends_the_streams_and_is_one_line_in_the_log(daemon: RunningDaemon) -> None:
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        watch: Any = channel.unary_stream(f"{MONITOR}/WatchSnapshots")
        streams = [watch(pb.WatchSnapshotsRequest(interval_seconds=seconds).SerializeToString()) for seconds in (0, 60)]
        health: Any = health_pb2_grpc.HealthStub(channel)
        streams.append(health.Watch(health_pb2.HealthCheckRequest()))
        for stream in streams:
            next(stream)
        stalled = opened(daemon.socket, window_bytes=0)
        stalled.sendall(request(1, "WatchSnapshots") + request(3, "ListHistory") + request(5, "GetSnapshot"))
        ours = StreamConnection(daemon.socket, 30).messages(f"{MONITOR}/WatchSnapshots", b"")
        next(ours)
        ended: list[RpcError] = []

        def read() -> None:
            try:
                for _ in ours:
                    pass
            except RpcError as error:
                ended.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert daemon.stop(signal.SIGTERM) == 0
        reader.join()
        assert [(error.code, error.details) for error in ended] == [(Status.UNAVAILABLE, "the daemon is ending")]
        for stream in streams:
            with pytest.raises(grpc.RpcError) as caught:
                for _ in stream:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        stalled.close()
    assert [line for line in daemon.log.splitlines() if "serving" not in line] == ["neurond: INFO: ending"]


def test_health_and_reflection_are_calls_like_others(daemon: RunningDaemon) -> None:
    most = limits_for(2**20).open[Kind.CALL].by_process
    with ExitStack() as channels:

        def connected() -> grpc.Channel:
            options = (("grpc.use_local_subchannel_pool", 1),)
            return channels.enter_context(grpc.insecure_channel(f"unix:{daemon.socket}", options))

        watches = []
        for _ in range(2):
            health: Any = health_pb2_grpc.HealthStub(connected())
            watches += [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(most // 2)]
        for watch in watches:
            next(watch)
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(connected())
        checked: Any = health_pb2_grpc.HealthStub(connected())
        for call in (
            lambda: checked.Check(health_pb2.HealthCheckRequest()),
            lambda: list(reflected.ServerReflectionInfo(iter(()))),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (
                refused.value.details()
                == f"PID {os.getpid()} has {most} calls open, as many as it may; end some of them"
            )
        watches.pop().cancel()
        assert wait_until(lambda: answered(daemon.socket))


def test_questions_in_one_stream_wait_as_calls_do(daemon: RunningDaemon) -> None:
    """More questions than may be asked for at once: the last answer comes when the rest has been earned."""
    pace = limits_for(2**20).process_pace
    questions = int(pace.at_once + pace.per_second)
    began = time.monotonic()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")] * questions)
        answers = sum(1 for _ in reflected.ServerReflectionInfo(asked))
    assert answers == questions
    assert time.monotonic() - began >= 1


def test_out_of_memory_is_a_line_and_the_next_daemon_takes_the_place_of_one_that_it_ended(
    tmp_path: Path,
) -> None:
    """Nothing more can be allocated, and a process reports as much as it may: the past of it is more than there is."""
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.02")
    daemon = RunningDaemon(tmp_path / "n.sock", flags, {})
    with ExitStack() as ending:
        ending.callback(daemon.process.wait)
        ending.callback(daemon.process.kill)
        attached = Attachment(daemon)
        attached.attach(core_count=1)
        report = pb.Report()
        for number in range(MOST_MODELS):
            model = report.models.add(model_id=number, name=f"model {number}", uuid=f"{number:032x}")
            model.subgraphs.add(index=0)
        most_bytes = resource.prlimit(daemon.pid, resource.RLIMIT_AS)[1]
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (0, most_bytes))

        def has_run_out() -> bool:
            with suppress(CallError, OSError):  # a daemon that has crashed takes no connection
                report.measured_at_seconds = time.monotonic()
                attached.report(report)
            return daemon.process.poll() is not None or "out of memory" in daemon.log

        wait_until(has_run_out)
        attached.connection.close()
        # A library that uses memory it didn't get leaves nobody who could tell.
        is_crash = daemon.process.poll() == -signal.SIGSEGV
        assert is_crash or re.search("out of memory|bad_alloc|MemoryError", daemon.log), daemon.log
        assert "Traceback" not in daemon.log, daemon.log
    assert daemon.process.returncode in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)
    left = {path.name for path in tmp_path.iterdir() if path.is_socket()}
    assert left == {"n.sock", "n.sock.attach"}
    successor = RunningDaemon(tmp_path / "n.sock", flags, {})
    assert successor.owners() == (None,) * 32
    assert successor.stop() == 0
    assert not [path.name for path in tmp_path.iterdir() if path.is_socket()]
