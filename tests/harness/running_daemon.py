"""A real neurond as a process of its own, on a private socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from neurontools import model
from neurontools.rpc import call, neuron_pb2
from neurontools.rpc.convert import from_message
from tests.harness import python_process
from tests.harness.waiting import HANG_SECONDS, wait_until

MONITOR = "/neurontools.v1.MonitorService"
RUNTIME = "/neurontools.v1.RuntimeService"


class Attachment:
    """A connection to the attach socket; the process is attached for as long as it is open."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(HANG_SECONDS)
        self.connection.connect(f"{daemon.socket}.attach")
        with self.connection.makefile("r", encoding="ascii") as lines:
            self.line = lines.readline()
        self.token = self.line.strip()

    def attach(self, **fields: object) -> neuron_pb2.AttachResponse:
        """Asks for cores: the fields of AttachRequest, all cores when there are none."""
        request = neuron_pb2.AttachRequest(token=self.token, **(fields or {"all_cores": True}))  # type: ignore[arg-type]
        return neuron_pb2.AttachResponse.FromString(self.daemon.call(f"{RUNTIME}/Attach", request))

    def report(self, report: neuron_pb2.Report) -> None:
        """Sends a report; RpcError when it is refused."""
        self.daemon.call(f"{RUNTIME}/Report", neuron_pb2.ReportRequest(token=self.token, report=report))

    def close(self) -> None:
        self.connection.close()


class RunningDaemon:
    """A neurond; `stop` ends it. Its log is in `log`. `prefix` is a command that executes the command after it."""

    def __init__(
        self, socket_path: Path, flags: tuple[str, ...], environment: dict[str, str], prefix: tuple[str, ...] = ()
    ) -> None:
        self.socket = str(socket_path)
        self.log_path = socket_path.with_suffix(".log")
        readable, writable = os.pipe()
        daemon = (sys.executable, "-m", "neurond", "--socket", self.socket, *flags, "--ready-fd", str(writable))
        with self.log_path.open("ab") as log:
            self.process = python_process.popen(
                [*prefix, *daemon],
                loaded=python_process.MONITORS,
                pass_fds=(writable,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # as service managers start it: where a terminal controls it, SIGHUP ends it
                env=os.environ | environment,
            )
        os.close(writable)
        with os.fdopen(readable, "rb") as ready:
            line = ready.readline()
        if line != b"ready\n":
            self.process.wait(HANG_SECONDS)
            raise AssertionError(f"the daemon did not start: {self.log}")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def call(self, method: str, request: object, timeout_seconds: float = HANG_SECONDS) -> bytes:
        """The reply to a unary call; `request` is a message, or its bytes."""
        message = request if isinstance(request, bytes) else request.SerializeToString()  # type: ignore[attr-defined]
        return call.call(self.socket, method, message, timeout_seconds=timeout_seconds)

    def snapshot(self) -> model.Snapshot:
        reply = self.call(f"{MONITOR}/GetSnapshot", b"")
        return from_message(model.Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)

    def next_snapshot(self, ticks: int = 2) -> model.Snapshot:
        """A snapshot that was begun after this call."""
        sequence = self.snapshot().sequence

        def condition() -> model.Snapshot | None:
            snapshot = self.snapshot()
            return snapshot if snapshot.sequence >= sequence + ticks else None

        return wait_until(condition)

    def find(self, pid: int) -> model.Process | None:
        """The process with this PID, if it is in the latest snapshot."""
        return next((process for process in self.snapshot().processes if process.pid == pid), None)

    def owners(self) -> tuple[int | None, ...]:
        """The owner of each core."""
        return tuple(core.owner_pid for core in self.snapshot().cores)

    def holders(self) -> list[int]:
        """The PIDs that hold a core, a PID a core."""
        return [pid for pid in self.owners() if pid is not None]

    def device_list(self, **request_fields: object) -> str:
        """The document of neuron-ls that the daemon makes; `request_fields` are the fields of the request."""
        reply = self.call(f"{MONITOR}/RenderDeviceList", neuron_pb2.RenderDeviceListRequest(**request_fields))  # type: ignore[arg-type]
        return neuron_pb2.RenderDeviceListResponse.FromString(reply).document.decode()

    def descriptor_count(self) -> int:
        """How many files the daemon has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    def findings(self, *kinds: str) -> list[model.Finding]:
        """What it finds, of these kinds or of all. A change of a tree may take its reading more than a tick to see."""
        health = self.snapshot().health
        assert health is not None
        return [finding for finding in health.findings if not kinds or finding.kind in kinds]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)


class StartDaemon(Protocol):
    def __call__(
        self,
        *flags: str,
        name: str = "n.sock",
        environment: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> RunningDaemon: ...


def file_limit(count: int) -> tuple[str, ...]:
    """The prefix of a command that may have this many files open."""
    return ("sh", "-c", f'ulimit -n {count} && exec "$@"', "sh")


def starter(directory: Path) -> Iterator[StartDaemon]:
    """Starts daemons with sockets in this directory, and ends them after."""
    daemons: list[RunningDaemon] = []

    def start(
        *flags: str, name: str = "n.sock", environment: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> RunningDaemon:
        given = flags or ("--simulate", "trn1.32xlarge", "--interval", "0.05")
        daemons.append(RunningDaemon(directory / name, given, environment or {}, prefix))
        return daemons[-1]

    yield start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
    for daemon in daemons:
        # Whatever a test did to it, nothing was left to the event loop's last resort.
        assert "Traceback" not in daemon.log, daemon.log


@contextmanager
def shared(*flags: str) -> Iterator[RunningDaemon]:
    """A daemon for many tests."""
    with tempfile.TemporaryDirectory(prefix="nd-", ignore_cleanup_errors=True) as directory:
        started = starter(Path(directory))
        yield next(started)(*flags)
        next(started, None)


@contextmanager
def connected(daemon: RunningDaemon) -> Iterator[Attachment]:
    """This process, connected to the attach socket of a daemon whose cores are all free."""
    wait_until(lambda: daemon.snapshot().processes == ())
    with closing(Attachment(daemon)) as attachment:
        yield attachment
