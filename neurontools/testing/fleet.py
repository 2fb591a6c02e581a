"""A fleet of simulated hosts for test suites and dashboards: real daemons, few processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from neurontools.fleet.hosts import Place, read_hostfile
from neurontools.testing import child

_START_SECONDS, _START_SECONDS_A_HOST = 60.0, 3.0  # also where other work takes the vCPUs
_STOP_SECONDS = 60.0
_SHORT = "/tmp"  # noqa: S108 - the command makes a directory of its own in it; paths of sockets are short


class SimulatedFleet:
    """A context with a running `neuron-fleet-sim`. `hostfile` is for `neuron-top --hostfile`, `places` for programs.

    It ends with this process, however that ends, and leaves nothing.
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
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._lifeline = -1  # closed with this process, however it ends
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

    @property
    def log(self) -> str:
        """What the command has told of so far."""
        if self._said is None:
            return ""
        return os.pread(self._said.fileno(), 2**20, 0).decode("utf-8", "replace")

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the process of a host; SIGSTOP and SIGCONT make it stand still and go on."""
        os.kill(self.pids[name], number)

    def __enter__(self) -> SimulatedFleet:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            child.end(self._child, _STOP_SECONDS)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._said is not None:
            self._said.close()
            self._said = None

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lasts as long as the command
        with ExitStack() as stack:
            readable, writable = os.pipe()
            stack.callback(os.close, readable)
            held, self._lifeline = os.pipe()
            try:
                self._child = subprocess.Popen(
                    [
                        # -P: the current directory is no place to import from.
                        *(sys.executable, "-P", "-c", "from neurond.fleet.command import main; main()"),
                        *self._flags,
                        *(f"--ready-fd={writable}", f"--while-fd={held}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    pass_fds=(writable, held),
                    env=os.environ | {"TMPDIR": _SHORT},
                )
            finally:
                os.close(writable)
                os.close(held)
            is_told = bool(select.select([readable], [], [], self._start_seconds)[0])
            self.directory = os.read(readable, 4096).decode().strip() if is_told else ""
            if not self.directory:
                raise RuntimeError(self.log.strip() or "the simulated fleet did not start")
