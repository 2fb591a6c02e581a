"""A daemon as a whole: it starts, samples, and outlives whatever is done to it, also by a peer that does its worst."""

from __future__ import annotations

import errno
import itertools
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from neurond.peers.limits import ResourceKind, limits_for

from neurontools import model
from neurontools.client import Client
from neurontools.rpc import call
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.ask import ask
from neurontools.rpc.call import CallError, RpcError, Status, StreamConnection
from neurontools.rpc.report_limits import MOST_MODELS
from neurontools.util.errors import UserError
from neurontools.util.rate_limited_log import SILENCE_SECONDS
from tests.harness import hostile_peer
from tests.harness.attached_process import AttachedProcess
from tests.harness.hostile_peer import ATTACKS, opened, request
from tests.harness.running_daemon import MONITOR, Attachment, RunningDaemon, StartDaemon, file_limit
from tests.harness.waiting import HANG_SECONDS, wait_until


def test_a_node_of_the_largest_ultraserver_with_physical_cores(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2u.48xlarge", "--lnc", "1", "--ultraserver", "us-1:2")
    instance = daemon.snapshot().instance
    assert (instance.logical_neuroncore_config, instance.ultraserver_id) == (1, "us-1")
    assert instance.ultraserver_node is not None
    assert instance.ultraserver_node.index == 2
    assert "[node 2 here ]" in daemon.device_list(topology=True)
    attachment = Attachment(daemon)
    assert len(attachment.attach().cores) == 128
    assert daemon.owners() == (os.getpid(),) * 128
    attachment.close()


def test_snapshots_come_at_the_interval(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1")

    def has_kept_time() -> bool:
        """For half a second; on a busy machine not for any."""
        with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
            replies = list(client.history())
        assert [snapshot.sequence for snapshot in replies] == list(range(1, len(replies) + 1))
        taken = [snapshot.taken_at_seconds for snapshot in replies[-6:]]
        periods = [later - earlier for earlier, later in itertools.pairwise(taken)]
        return len(periods) == 5 and all(0.05 < period < 0.15 for period in periods)

    wait_until(has_kept_time)


def test_synthetic_load_in_a_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.2xlarge", "--load", "steady", "--load-neuroncores", "1", "--interval", "0.05"
    )

    def measured() -> model.Snapshot | None:
        snapshot = daemon.snapshot()
        return snapshot if snapshot.cores[0].utilization_ratio and snapshot.processes[0].total_latency else None

    snapshot = wait_until(measured)
    assert snapshot.synthetic_load == "steady"
    (process,) = snapshot.processes
    assert process.synthetic
    assert snapshot.cores[0].utilization_ratio == pytest.approx(0.9, abs=0.15)
    assert process.total_latency is not None
    assert process.total_latency.p50_seconds == pytest.approx(0.05, rel=0.2)
    attachment = Attachment(daemon)
    assert [core.neuroncore_index for core in attachment.attach(core_count=1).cores] == [1]
    ours, synthetic = daemon.snapshot().processes
    assert (ours.pid, ours.synthetic, synthetic.synthetic) == (os.getpid(), False, True)
    assert ours.command != synthetic.command
    attachment.close()


def test_fifty_clients_at_once(shared_daemon: RunningDaemon) -> None:
    def ask(number: int) -> bytes:
        method = ("GetSnapshot", "RenderDeviceList")[number % 2]
        return shared_daemon.call(f"{MONITOR}/{method}", b"")

    shared_daemon.snapshot()
    before = shared_daemon.descriptor_count()
    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(ask, range(150)))
    with grpc.insecure_channel(f"unix:{shared_daemon.socket}") as channel:
        watch: Any = channel.unary_stream(f"{MONITOR}/WatchSnapshots")
        streams = [watch(b"") for _ in range(50)]
        assert all(next(stream) for stream in streams for _ in range(3))
    wait_until(lambda: shared_daemon.descriptor_count() <= before + 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096, os.urandom(65536)],
    ids=["nothing", "HTTP/1", "a broken HTTP/2", "noise"],
)
def test_connections_that_speak_something_else(shared_daemon: RunningDaemon, data: bytes) -> None:
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(shared_daemon.socket)
            try:
                connection.sendall(data)
            except OSError:
                assert data, "the daemon may have closed it already"
    assert shared_daemon.next_snapshot().sequence


def test_a_daemon_without_file_descriptors_goes_on_when_it_has_them_again(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    with call.UnaryConnection(daemon.socket, HANG_SECONDS) as connection:

        def snapshot() -> pb.Snapshot:
            reply = connection.call(f"{MONITOR}/GetSnapshot", b"", timeout_seconds=HANG_SECONDS)
            return pb.GetSnapshotResponse.FromString(reply).snapshot

        full = wait_until(lambda: found if (found := snapshot()).host.memory_total_bytes else None)
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        begun = snapshot().sequence + 1  # the one at hand may have had some of its descriptors
        poor = wait_until(lambda: found if (found := snapshot()).sequence > begun else None)
        assert not poor.host.HasField("memory_total_bytes"), "unknown, and neither 0 nor an old number"
        assert "of the host can't be read: Too many open files" in poor.warnings[0]
        assert [process.pid for process in poor.processes] == [os.getpid()]
        assert poor.processes[0].command == full.processes[0].command
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: not snapshot().warnings)
    assert daemon.owners()[0] == os.getpid()
    attachment.close()


def test_a_daemon_ends_with_its_parent_if_it_is_told_to(socket_directory: Path) -> None:
    parent = (
        "import subprocess, sys\n"
        "daemon = subprocess.Popen([sys.executable, '-m', 'neurond', '--simulate', 'trn1.2xlarge', '--socket',\n"
        "    sys.argv[1], '--exit-with-parent'])\n"
        "print(daemon.pid, flush=True)\nsys.stdin.read()\n"
    )
    path = socket_directory / "n.sock"
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline())
        wait_until(Path(f"{path}.attach").exists)
        process.kill()
    wait_until(lambda: not list(socket_directory.iterdir()))


def test_a_daemon_whose_parent_is_gone_before_it_can_ask_for_that_ends_too(socket_directory: Path) -> None:
    readable, writable = os.pipe()
    daemon = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", f"{socket_directory}/n.sock"]
    with subprocess.Popen(
        ["sh", "-c", '"$@" &', "sh", *daemon, "--exit-with-parent", "--ready-fd", str(writable)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(writable,),
    ) as shell:
        os.close(writable)
        os.close(readable)
        told, _ = shell.communicate(timeout=HANG_SECONDS)  # until nobody has its output any more
    assert "Traceback" not in told
    assert not list(socket_directory.iterdir())


@pytest.mark.parametrize(("level", "logs"), [("info", True), ("error", False)])
def test_the_log_tells_what_its_level_asks_for(start_daemon: StartDaemon, level: str, logs: bool) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--log-level", level)
    assert daemon.stop() == 0
    expected = f"neurond: INFO: serving trn1.2xlarge on unix:{daemon.socket}\nneurond: INFO: ending\n"
    assert daemon.log == (expected if logs else "")


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
        assert peer.communicate()[0].startswith(b"ended"), "it attacked to the end"


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("resets", "slots") else pytest.mark.slow) for name in ATTACKS]
)
def test_others_are_answered_while_one_peer_does_its_worst(daemon: RunningDaemon, name: str) -> None:
    daemon.next_snapshot()
    files, before_bytes, began = daemon.descriptor_count(), resident_bytes(daemon.pid), time.monotonic()
    with attack(daemon, name):
        for _ in range(ANSWERS):
            assert ask(daemon.socket, f"{MONITOR}/RenderDeviceList", b"", HANG_SECONDS)
        attached = Attachment(daemon)
        assert attached.attach(core_count=1).pid == os.getpid()
        attached.close()
    wait_until(lambda: daemon.descriptor_count() <= files + 1)
    wait_until(lambda: resident_bytes(daemon.pid) < before_bytes + GROWTH_BYTES)
    assert daemon.stop() == 0
    minutes = 1 + (time.monotonic() - began) // SILENCE_SECONDS
    assert len(daemon.log.splitlines()) <= 4 * minutes, daemon.log


def test_who_has_too_many_connections_is_told_so_and_others_have_their_share(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(prefix=file_limit(80))
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    flood = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    for connection in flood:
        connection.connect(daemon.socket)
    assert b"its limit; end some of them" in flood[-1].recv(4096)
    with pytest.raises(UserError) as refused:
        ask(daemon.socket, f"{MONITOR}/GetSnapshot", b"", HANG_SECONDS)
    assert re.fullmatch(
        rf"the monitor daemon at unix:{daemon.socket} can't answer \(PID {os.getpid()} has \d+ connections open, "
        r"which is its limit; end some of them\); retry, or see its log",
        str(refused.value),
    )
    with AttachedProcess(daemon, "1") as other:  # which calls it too
        assert other.token
    for connection in flood:
        connection.close()
    wait_until(lambda: answered(daemon.socket))
    assert daemon.owners()[0] == os.getpid(), "who was attached stays it"
    attachment.close()
    wait_until(lambda: daemon.owners()[0] is None)


def test_connections_that_end_while_they_have_to_wait_take_nobody_s_place(daemon: RunningDaemon) -> None:
    """One process asks for far more than it may at once, on connections that it closes without reading an answer."""
    limits = limits_for(2**20)
    calls = b"".join(request(stream_id, "GetSnapshot") for stream_id in range(1, 41, 2))
    for _ in range(2 * limits.open[ResourceKind.CONNECTION].by_process):
        with opened(daemon.socket) as connection:
            connection.sendall(calls)
    for _ in range(limits.open[ResourceKind.CONNECTION].by_process):
        assert ask(daemon.socket, f"{MONITOR}/GetSnapshot", b"", HANG_SECONDS)


def answered(path: str) -> bytes | None:
    try:
        return call.call(path, f"{MONITOR}/GetSnapshot", b"", timeout_seconds=HANG_SECONDS)
    except RpcError:
        return None


def test_a_fifth_reader_of_the_past_is_refused(daemon: RunningDaemon) -> None:
    stalled: list[socket.socket] = []

    def refused() -> str | None:
        try:
            assert list(StreamConnection(daemon.socket, HANG_SECONDS).messages(f"{MONITOR}/ListHistory", b""))
        except RpcError as error:
            return error.details
        return None

    def refused_beside_stalled() -> str | None:
        stalled.append(opened(daemon.socket, window_bytes=0))
        stalled[-1].sendall(b"".join(request(number, "ListHistory") for number in (1, 3, 5, 7)))
        return refused()

    text = wait_until(refused_beside_stalled)
    assert text == f"PID {os.getpid()} has 4 history readers open, which is its limit; end some of them"
    for connection in stalled:
        connection.close()
    wait_until(lambda: refused() is None)


def test_out_of_descriptors_is_one_line_and_passes(daemon: RunningDaemon) -> None:
    daemon.next_snapshot()  # a whole tick: all that it needs is imported
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
    cause = f": cannot accept connections: {os.strerror(errno.EMFILE)}; raise the limit of open files, or end processes"
    lines = [line for line in daemon.log.splitlines() if cause in line]
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
        ours = StreamConnection(daemon.socket, HANG_SECONDS).messages(f"{MONITOR}/WatchSnapshots", b"")
        next(ours)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(list, ours)
            assert daemon.stop(signal.SIGTERM) == 0
            with pytest.raises(RpcError) as ended:
                reading.result(HANG_SECONDS)
        assert (ended.value.code, ended.value.details) == (Status.UNAVAILABLE, "the daemon is ending")
        for stream in streams:
            with pytest.raises(grpc.RpcError) as caught:
                for _ in stream:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        stalled.close()
    assert [line for line in daemon.log.splitlines() if "serving" not in line] == ["neurond: INFO: ending"]


def test_health_and_reflection_are_calls_like_others(daemon: RunningDaemon) -> None:
    most = limits_for(2**20).open[ResourceKind.CALL].by_process
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
        calls: list[Callable[[], Any]] = [
            lambda: checked.Check(health_pb2.HealthCheckRequest()),
            lambda: list(reflected.ServerReflectionInfo(iter(()))),
        ]
        for asked in calls:
            with pytest.raises(grpc.RpcError) as refused:
                asked()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            limit = f"{most} calls open, which is its limit; end some of them"
            assert refused.value.details() == f"PID {os.getpid()} has {limit}"
        watches.pop().cancel()
        assert wait_until(lambda: answered(daemon.socket))


@pytest.mark.slow
def test_questions_in_one_stream_wait_as_calls_do(daemon: RunningDaemon) -> None:
    """More questions than may be asked for at once: the last answer comes when the rest has been earned."""
    pace = limits_for(2**20).process_pace
    questions = int(pace.burst + pace.per_second)
    began = time.monotonic()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")] * questions)
        answers = sum(1 for _ in reflected.ServerReflectionInfo(asked))
    assert answers == questions
    assert time.monotonic() - began >= 1


def test_out_of_memory_is_a_line(tmp_path: Path) -> None:
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
