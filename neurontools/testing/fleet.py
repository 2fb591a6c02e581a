"""A fleet of simulated hosts for test suites and dashboards: real daemons, few processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from neurontools.fleet.hosts import Place, read_hostfile

_START_SECONDS, _START_SECONDS_A_HOST = 60.0, 3.0  # also where other work takes the vCPUs
_STOP_SECONDS = 60.0
_SHORT = "/tmp"  # noqa: S108 - mkdtemp makes a directory of our own in it; paths of sockets are short


class SimulatedFleet:
    """A context with a running `neuron-fleet-sim`. `hostfile` is for `neuron-top --hostfile`, `places` for programs.

    `mix` is as the command has it. `stop` kills the process of a host, with all the hosts that it serves: with as many
    processes as hosts, that one alone. Entering raises RuntimeError with the command's own words when it doesn't start.
    """

    def __init__(
        self,
        hosts: int = 4,
        *,
        mix: str | None = None,
        seed: int = 0,
        interval_seconds: float | None = None,
        processes: int = 1,
        metrics_from: int | None = None,
    ) -> None:
        self._flags = [f"--hosts={hosts}", f"--seed={seed}"]
        self._flags += [f"--interval={interval_seconds}"] if interval_seconds is not None else []
        self._start_seconds = _START_SECONDS + hosts * _START_SECONDS_A_HOST
        self._flags += [f"--processes={processes}", *([f"--mix={mix}"] if mix else [])]
        self._flags += [f"--metrics-from={metrics_from}"] if metrics_from is not None else []
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.directory = ""

    @property
    def hostfile(self) -> str:
        """The file with a host a line."""
        return f"{self.directory}/hosts"

    @property
    def places(self) -> tuple[Place, ...]:
        """The hosts and their sockets."""
        return read_hostfile(self.hostfile).places

    @property
    def pids(self) -> dict[str, int]:
        """The process of each host, by name."""
        lines = Path(self.directory, "pids").read_text("ascii").splitlines()
        return {name: int(pid) for name, _, pid in (line.partition(" ") for line in lines)}

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the process of a host; SIGSTOP and SIGCONT make it stand still and go on."""
        os.kill(self.pids[name], number)

    def __enter__(self) -> SimulatedFleet:
        self._temporary = tempfile.TemporaryDirectory(prefix="fleet-", dir=_SHORT, ignore_cleanup_errors=True)
        self.directory = self._temporary.name
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _start(self) -> None:
        readable, writable = os.pipe()
        log = Path(self.directory, "log")
        try:
            with log.open("wb") as narration:
                self._child = subprocess.Popen(
                    [
                        # -P: the current directory is no place to import from.
                        *(sys.executable, "-P", "-c", "from neurond.fleet.command import main; main()"),
                        *self._flags,
                        *(f"--directory={self.directory}", f"--ready-fd={writable}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=narration,
                    pass_fds=(writable,),
                )
        finally:
            os.close(writable)
        try:
            is_ready = (
                bool(select.select([readable], [], [], self._start_seconds)[0]) and os.read(readable, 16) == b"ready\n"
            )
        finally:
            os.close(readable)
        if not is_ready:
            raise RuntimeError(log.read_text("utf-8", "replace").strip() or "the simulated fleet did not start")
