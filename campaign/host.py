"""The daemon under trial: starts, kills and queries a real neurond."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import CallError, call
from neurontools.rpc.convert import from_message
from neurontools.util.errors import UserError

PATIENCE_SECONDS = 60.0  # an event that has not happened by then counts as missing
_GET_SNAPSHOT = "/neurontools.v1.MonitorService/GetSnapshot"


class Host:
    """A neurond on its own socket; `log` has its output."""

    def __init__(self, directory: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.socket = str(directory / "n.sock")
        self._log = directory / "neurond.log"
        self._flags = flags or ("--simulate", "trn1.32xlarge", "--interval", "0.05")
        self._environment = environment or {}
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        ready, ready_end = os.pipe()
        command = [sys.executable, "-m", "neurond", "--socket", self.socket, *self._flags, "--ready-fd", str(ready_end)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                pass_fds=[ready_end],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # with a terminal, SIGHUP would end the daemon
            )
        os.close(ready_end)
        with os.fdopen(ready, "rb") as told:
            if told.readline() != b"ready\n":
                raise RuntimeError(f"neurond did not start: {self.log[-500:]}")
        return process

    def restart(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends the daemon with this signal and starts it again."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE_SECONDS)
        self.process = self._started()

    def stop(self) -> int:
        """Terminates the daemon and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    @property
    def log(self) -> str:
        """The output of the daemon so far."""
        return self._log.read_text("utf-8", "replace")

    @property
    def resident_bytes(self) -> int:
        """The daemon's resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def snapshot(self) -> Snapshot:
        """Returns the latest snapshot."""
        reply = call(self.socket, _GET_SNAPSHOT, b"", timeout_seconds=PATIENCE_SECONDS)
        return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)

    def settles(self, holds: Callable[[Snapshot], bool]) -> bool:
        """Waits until a snapshot fulfils the condition. Returns False if none does within PATIENCE_SECONDS."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                if holds(self.snapshot()):
                    return True
            except (CallError, UserError):
                pass
            time.sleep(0.02)
        return False

    def memory_settles(self, below_bytes: int) -> bool:
        """Waits until the resident memory is below the limit. Returns False after PATIENCE_SECONDS / 4."""
        deadline = time.monotonic() + PATIENCE_SECONDS / 4
        while self.resident_bytes > below_bytes:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


@contextmanager
def host(directory: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[Host]:
    """Runs a daemon for the length of a block."""
    started = Host(directory, *flags, environment=environment)
    try:
        yield started
    finally:
        started.stop()


def neuron_ls(socket: str) -> tuple[bool, float, str]:
    """Runs neuron-ls. Returns whether it succeeded, how many seconds it took, and its standard error."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from neurontools.cli.ls.command import main; main()", "--socket", socket],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_SECONDS,
    )
    answered = done.returncode == 0 and done.stdout.startswith("instance-type:")
    return answered, time.monotonic() - began, done.stderr
