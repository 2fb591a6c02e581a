"""A neurond that a test starts, stops and starts again at the same socket."""

from __future__ import annotations

import signal
from pathlib import Path

from neurontools import model
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import wait_until


class RestartedDaemon(RunningDaemon):
    """A neurond of a test's own, simulating a trn1.32xlarge unless told otherwise; at first it is not started."""

    def __init__(self, socket: str, interval_seconds: float = 0.05) -> None:
        self.socket = socket
        self._interval_seconds = interval_seconds
        self._was_started = False

    def start(self, instance_type: str = "trn1.32xlarge") -> None:
        flags = ("--simulate", instance_type, "--interval", f"{self._interval_seconds:g}", "--log-level", "error")
        super().__init__(Path(self.socket), flags, {})
        self._was_started = True

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, also of a stopped one, and the end of it."""
        if self._was_started:
            self.stop(signal.SIGKILL)

    def reported(self, pid: int) -> model.Process:
        """The process with this PID, once a report of it is in the snapshot."""

        def condition() -> model.Process | None:
            process = self.find(pid)
            return process if process is not None and process.measured_at_seconds is not None else None

        return wait_until(condition)

    def owners(self) -> tuple[int, ...]:
        """The PIDs that hold a core, in order of the cores."""
        return tuple(pid for pid in super().owners() if pid is not None)
