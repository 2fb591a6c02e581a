"""A neurond that a test starts, stops and starts again at the same socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from neurontools import model
from neurontools.rpc import call, neuron_pb2
from neurontools.rpc.convert import from_message
from tests.harness import python_process
from tests.harness.waiting import HANG_SECONDS, wait_until


class RestartedDaemon:
    """A neurond of a test's own, simulating a trn1.32xlarge unless told otherwise."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, instance_type: str = "trn1.32xlarge") -> None:
        readable, writable = os.pipe()
        command = [sys.executable, "-m", "neurond", "--simulate", instance_type, "--socket", self.socket]
        self.process = python_process.popen(
            [*command, "--interval", "0.05", "--log-level", "error", "--ready-fd", str(writable)],
            loaded=python_process.MONITORS,
            pass_fds=(writable,),
            stdout=subprocess.DEVNULL,
        )
        os.close(writable)
        with os.fdopen(readable, "rb") as ready:
            assert ready.readline() == b"ready\n"

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, also of a stopped one, and the end of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def snapshot(self) -> model.Snapshot:
        reply = call.call(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=HANG_SECONDS)
        return from_message(model.Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)

    def find(self, pid: int) -> model.Process | None:
        """The process with this PID, if it is in the latest snapshot."""
        return next((process for process in self.snapshot().processes if process.pid == pid), None)

    def reported(self, pid: int) -> model.Process:
        """The process with this PID, once a report of it is in the snapshot."""

        def look() -> model.Process | None:
            process = self.find(pid)
            return process if process is not None and process.measured_at_seconds is not None else None

        return wait_until(look)

    def owners(self) -> tuple[int, ...]:
        """The PIDs that hold a core, in order of the cores."""
        return tuple(core.owner_pid for core in self.snapshot().cores if core.owner_pid is not None)
