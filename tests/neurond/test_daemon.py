"""A daemon as a whole: that it starts, samples, and outlives whatever is done to it."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from neurontools import catalog, model
from neurontools.rpc import call
from neurontools.rpc import neuron_pb2 as pb
from tests.harness.paths import ATTACHED_CHILD, NEURON_LS
from tests.harness.running_daemon import MONITOR, Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.mark.parametrize("instance_type", catalog.names())
def test_every_instance_type_starts(start_daemon: StartDaemon, instance_type: str) -> None:
    daemon = start_daemon("--simulate", instance_type)
    instance = daemon.snapshot().instance
    assert (instance.instance_type, instance.device_count) == (instance_type, catalog.load(instance_type).device_count)
    assert daemon.stop() == 0


def test_the_largest_instance_with_physical_cores(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.48xlarge", "--lnc", "1")
    attachment = Attachment(daemon)
    assert len(attachment.attach().cores) == 128
    assert daemon.owners() == (os.getpid(),) * 128
    assert daemon.snapshot().instance.logical_neuroncore_config == 1
    attachment.close()


def test_a_node_of_an_ultraserver_says_so_wherever_the_original_would(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2u.48xlarge", "--ultraserver", "us-1:2")
    instance = daemon.snapshot().instance
    assert instance.ultraserver_id == "us-1"
    assert instance.ultraserver_node is not None
    assert instance.ultraserver_node.index == 2
    environment = os.environ | {"NEURONTOOLS_SOCKET": daemon.socket}

    def said(*command: str) -> str:
        return subprocess.run(
            [sys.executable, str(NEURON_LS), *command], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert json.loads(said("--output-format", "json"))["ultraserver_id"] == "us-1"
    assert "[node 2 here ]" in said("-t")


def test_snapshots_come_at_the_interval(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1")

    def has_kept_time() -> bool:
        """For a second; on a busy machine not for any."""
        replies = history(daemon)
        assert [snapshot.sequence for snapshot in replies] == list(range(1, len(replies) + 1))
        taken = [snapshot.taken_at_seconds for snapshot in replies[-11:]]
        periods = [later - earlier for earlier, later in itertools.pairwise(taken)]
        return len(periods) == 10 and all(0.05 < period < 0.15 for period in periods)

    wait_until(has_kept_time)


def history(daemon: RunningDaemon) -> list[pb.Snapshot]:
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        ask: Any = channel.unary_stream(f"{MONITOR}/ListHistory")
        return [pb.ListHistoryResponse.FromString(reply).snapshot for reply in ask(b"")]


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
    assert [process.synthetic for process in daemon.snapshot().processes] == [False, True]
    attachment.close()


def test_a_stopped_daemon_goes_on_without_making_up_for_lost_ticks(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    daemon.process.send_signal(signal.SIGSTOP)
    stopped_at = wait_until(lambda: time.monotonic() if state(daemon.pid) == "T" else None)
    wait_until(lambda: time.monotonic() > stopped_at + 1.0)
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.owners()[0] == os.getpid()
    wait_until(lambda: daemon.snapshot().taken_at_seconds > stopped_at + 1.2)
    missed = [snapshot for snapshot in history(daemon) if stopped_at < snapshot.taken_at_seconds < stopped_at + 1.1]
    assert len(missed) <= 4, "and not the 20 of a second"
    attachment.close()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


STREAM = """
import sys, grpc
with grpc.insecure_channel(f"unix:{sys.argv[1]}") as channel:
    stream = channel.unary_stream("/neurontools.v1.MonitorService/WatchSnapshots")(b"")
    next(stream)
    print("streams", flush=True)
    for _ in stream:
        pass
"""


def test_clients_that_are_killed_in_the_middle_of_a_stream(daemon: RunningDaemon) -> None:
    clients = [
        subprocess.Popen([sys.executable, "-c", STREAM, daemon.socket], stdout=subprocess.PIPE) for _ in range(4)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == b"streams\n"
    during = daemon.descriptor_count()
    for client in clients:
        client.kill()
        client.communicate()
    wait_until(lambda: daemon.descriptor_count() <= during - 4)
    assert daemon.next_snapshot().warnings == ()


def test_fifty_clients_at_once(daemon: RunningDaemon) -> None:
    def ask(number: int) -> bytes:
        method = ("GetSnapshot", "RenderDeviceList")[number % 2]
        return daemon.call(f"{MONITOR}/{method}", b"")

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(ask, range(300)))
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        watch: Any = channel.unary_stream(f"{MONITOR}/WatchSnapshots")
        streams = [watch(b"") for _ in range(50)]
        assert all(next(stream) for stream in streams for _ in range(3))
    assert daemon.next_snapshot().sequence


def test_five_hundred_calls_leave_no_files_open(daemon: RunningDaemon) -> None:
    daemon.snapshot()
    before = daemon.descriptor_count()
    for _ in range(500):
        daemon.call(f"{MONITOR}/GetSnapshot", b"")
    wait_until(lambda: daemon.descriptor_count() <= before + 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096, os.urandom(65536)],
    ids=["nothing", "HTTP/1", "a broken HTTP/2", "noise"],
)
def test_connections_that_speak_something_else(daemon: RunningDaemon, data: bytes) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(daemon.socket)
            try:
                connection.sendall(data)
            except OSError:
                assert data, "the daemon may have closed it already"
    assert daemon.next_snapshot().sequence


def test_more_connections_than_a_process_may_have(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(file_limit=64)
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    flood = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    for connection in flood:
        connection.connect(daemon.socket)
    told = flood[-1].recv(4096)
    assert b"may; end some of them" in told
    ask = [sys.executable, "-c", ASK, daemon.socket]
    assert subprocess.run(ask, check=True, capture_output=True).stdout == b"answered\n", "others have their own share"
    for connection in flood:
        connection.close()
    wait_until(lambda: is_answered(daemon))
    assert daemon.owners()[0] == os.getpid(), "who was attached stays it"
    attachment.close()
    wait_until(lambda: daemon.owners()[0] is None)


def is_answered(daemon: RunningDaemon) -> bool:
    """Whether this process is let in; not before the daemon has seen the ends of its other connections."""
    try:
        daemon.snapshot()
    except call.RpcError:
        return False
    return True


ASK = """
import sys
from neurontools.rpc import call
if call.call(sys.argv[1], "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=30):
    print("answered")
"""


def test_a_daemon_without_file_descriptors_goes_on_when_it_has_them_again(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    with call.Connection(daemon.socket, 30) as connection:

        def snapshot() -> pb.Snapshot:
            reply = connection.call(f"{MONITOR}/GetSnapshot", b"", timeout_seconds=30)
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


def test_a_process_whose_command_line_is_not_utf_8(daemon: RunningDaemon) -> None:
    command: list[str | bytes] = [sys.executable, str(ATTACHED_CHILD), daemon.socket, "1", "0", b"\xff\xfe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        found = daemon.find(process.pid)
        assert found is not None
        assert found.command.endswith(" 1 0 \ufffd\ufffd")
        document = daemon.call(
            f"{MONITOR}/RenderDeviceList", pb.RenderDeviceListRequest(format=pb.RenderDeviceListRequest.FORMAT_JSON)
        )
        assert json.loads(pb.RenderDeviceListResponse.FromString(document).document)
        process.kill()


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


def test_a_service_manager_is_told_that_the_daemon_serves(start_daemon: StartDaemon, socket_directory: Path) -> None:
    address = str(socket_directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(HANG_SECONDS)
        start_daemon(environment={"NOTIFY_SOCKET": address})
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize(("level", "logs"), [("info", True), ("error", False)])
def test_what_is_logged(start_daemon: StartDaemon, level: str, logs: bool) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--log-level", level)
    assert daemon.stop() == 0
    expected = f"neurond: INFO: serving trn1.2xlarge on unix:{daemon.socket}\nneurond: INFO: ending\n"
    assert daemon.log == (expected if logs else "")
