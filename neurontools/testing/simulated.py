"""Simulated drivers, hosts and fleets for tests: real daemons on simulated hardware."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

from neurontools.driver.environment import DEV_ROOT, PROC_ROOT, SYSFS_ROOT, Roots
from neurontools.driver.tree_export import DRIVER_VERSION
from neurontools.faults.requests import FaultRequest
from neurontools.fleet.hosts import HostAddress, read_hostfile
from neurontools.model import InjectedFault, Snapshot
from neurontools.rpc import fault_calls, neuron_pb2
from neurontools.rpc.ask import ask
from neurontools.rpc.convert import from_message
from neurontools.rpc.socket_path import VARIABLE
from neurontools.testing.driver_tree import temporary_directory


def end_child(child: subprocess.Popen[bytes], patience_seconds: float) -> None:
    """Terminates a process; kills it if it has not ended after `patience_seconds`."""
    child.terminate()
    try:
        child.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


_START_SECONDS = 300.0  # only a hang reaches it
_STOP_SECONDS = 10.0
_SHORT = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it


class SimulatedDriver:
    """A context manager that runs `neurond --simulate TYPE --export-sysfs`, with synthetic load if `scenario` is given.

    Entering the context raises RuntimeError with the daemon's message if the daemon does not start. Training processes
    that attach to `socket` appear in the tree.
    """

    def __init__(
        self,
        instance_type: str,
        *,
        scenario: str | None = None,
        seed: int = 0,
        interval_seconds: float = 1.0,
        driver_version: str = DRIVER_VERSION,
    ) -> None:
        self._flags = ["--simulate", instance_type, "--interval", str(interval_seconds)]
        self._flags += ["--export-driver-version", driver_version]
        if scenario:
            self._flags += ["--load", scenario, "--seed", str(seed)]
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._runtime: tempfile.TemporaryDirectory[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.directory = ""
        self.socket = ""

    @property
    def pid(self) -> int:
        """The PID of the daemon. Raises RuntimeError before the context is entered."""
        if self._child is None:
            raise RuntimeError("the simulated driver is not running; use it as a context")
        return self._child.pid

    @property
    def roots(self) -> Roots:
        """The paths of `sys`, `proc` and `dev` in the tree, for readers in this process."""
        return Roots(f"{self.directory}/sys", f"{self.directory}/proc", f"{self.directory}/dev")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make our commands read this tree."""
        roots = self.roots
        return {SYSFS_ROOT: roots.sys, PROC_ROOT: roots.proc, DEV_ROOT: roots.dev}

    def __enter__(self) -> Self:
        self._temporary = temporary_directory()
        self.directory = f"{self._temporary.name}/host"
        # The socket is not next to the tree, because TMPDIR may be too long for a socket path.
        self._runtime = tempfile.TemporaryDirectory(
            prefix="neuron-", dir=_SHORT if os.access(_SHORT, os.W_OK) else None
        )
        self.socket = f"{self._runtime.name}/neurond.sock"
        log = Path(self._temporary.name) / "log"
        readable, writable = os.pipe()
        try:
            with log.open("wb") as narration:
                self._child = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "neurond", *self._flags),
                        *("--socket", self.socket, "--export-sysfs", self.directory),
                        *("--ready-fd", str(writable), "--exit-with-parent", "--log-level", "error"),
                    ],
                    pass_fds=(writable,),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=narration,
                )
            os.close(writable)
            writable = -1
            if not _is_readable(readable, _START_SECONDS) or os.read(readable, 16) != b"ready\n":
                self._child.kill()
                self._child.wait()
                raise RuntimeError(f"the simulated driver did not start: {log.read_text('utf-8').strip()}")
        except BaseException:
            self._clean_up()
            raise
        finally:
            os.close(readable)
            if writable >= 0:
                os.close(writable)
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            end_child(self._child, _STOP_SECONDS)
        self._clean_up()

    def _clean_up(self) -> None:
        for directory in (self._temporary, self._runtime):
            if directory is not None:
                directory.cleanup()


class SimulatedHost(SimulatedDriver):
    """A context manager that runs a monitor daemon for a simulated instance with injectable faults.

    Processes with the variables of `environment` train on this host. The driver's tree and `kernel_log` show faults to
    node agents. Methods that call the daemon raise a one-line UserError if the daemon refuses.
    """

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make training processes and our commands use this host."""
        return {VARIABLE: self.socket}

    @property
    def kernel_log(self) -> Path:
        """The host's kernel log, in the form of /dev/kmsg. Faults add NEURON_HW_ERR lines."""
        return Path(self.directory) / "dev/kmsg"

    @contextmanager
    def fault(self, kind: str, **parameters: Any) -> Iterator[InjectedFault]:
        """Injects a fault for the duration of the context.

        `parameters` has one of `device`, `core` and `pid`, and optionally `after_executions`, `after_seconds`,
        `for_seconds`, `probability`, `amount`, `part`, `peer_device_index` and `seed`; see neuron-fault(1). Raises
        ImpossibleFault (a ValueError) if these arguments contradict each other.
        """
        fault = self.inject(kind, **parameters)
        try:
            yield fault
        finally:
            if any(each.number == fault.number for each in self.faults):
                self.heal(fault.number)

    def inject(
        self, kind: str, *, device: int | None = None, core: int | None = None, **parameters: Any
    ) -> InjectedFault:
        """Injects a fault, which lasts until `heal`.

        Returns once the affected processes have acknowledged the fault.
        """
        request = FaultRequest(kind, device_index=device, neuroncore_index=core, **parameters)
        return fault_calls.inject(self.socket, [request])[0]

    def heal(self, *numbers: int) -> int:
        """Ends the faults with these numbers; all faults if no number is given. Returns the number of ended faults."""
        return fault_calls.heal(self.socket, numbers)

    @property
    def faults(self) -> tuple[InjectedFault, ...]:
        """The active faults, with their progress and the number of executions that each has hit."""
        return fault_calls.list_faults(self.socket)

    @property
    def snapshot(self) -> Snapshot:
        """The current state of the host."""
        reply = ask(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", fault_calls.TIMEOUT_SECONDS)
        return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)


_FLEET_START_SECONDS, _FLEET_START_SECONDS_PER_HOST = 60.0, 3.0  # also enough on a busy host
_FLEET_STOP_SECONDS = 60.0


class SimulatedFleet:
    """A context manager that runs `neuron-fleet-sim`, which simulates many hosts.

    `hostfile` lists the hosts for `neuron-top --hostfile`, `places` for programs. The fleet ends with this process,
    even if this process is killed, and removes its files. `mix` is the command's option --mix. `stop` kills the process
    that simulates a host, and thus all hosts in that process. If `processes` equals `hosts`, each host has its own
    process. Entering the context raises RuntimeError with the command's message if the fleet does not start.
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
        self._start_seconds = _FLEET_START_SECONDS + hosts * _FLEET_START_SECONDS_PER_HOST
        self._flags += [f"--processes={processes}", *([f"--mix={mix}"] if mix else [])]
        self._flags += [f"--metrics-from={metrics_from}"] if metrics_from is not None else []
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._resources = ExitStack()
        self.directory = ""

    @property
    def hostfile(self) -> str:
        """The path of the hostfile, a list of the hosts for `neuron-top --hostfile`."""
        return f"{self.directory}/hosts"

    @property
    def places(self) -> tuple[HostAddress, ...]:
        """The name and address of each host."""
        return read_hostfile(self.hostfile).places

    @property
    def pids(self) -> dict[str, int]:
        """The PID of each host's process, by host name."""
        lines = Path(self.directory, "pids").read_text("ascii").splitlines()
        return {name: int(pid) for name, _, pid in (line.partition(" ") for line in lines)}

    @property
    def log(self) -> str:
        """The text that the command has written to standard error so far."""
        if self._stderr is None:
            return ""
        return os.pread(self._stderr.fileno(), 2**20, 0).decode("utf-8", "replace")

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the process of a host. SIGSTOP and SIGCONT pause and resume it."""
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
            end_child(self._child, _FLEET_STOP_SECONDS)
        self._resources.close()
        self._stderr = None

    def _start(self) -> None:
        self._stderr = self._resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        with ExitStack() as stack:
            readable, writable = os.pipe()
            stack.callback(os.close, readable)
            # The kernel closes this pipe when this process ends, which ends the fleet.
            lifeline_fd, lifeline_end_fd = os.pipe()
            self._resources.callback(os.close, lifeline_end_fd)
            try:
                self._child = subprocess.Popen(
                    [
                        # -P keeps the current directory out of the import path.
                        *(sys.executable, "-P", "-c", "from neurond.fleet.command import main; main()"),
                        *self._flags,
                        *(f"--ready-fd={writable}", f"--while-fd={lifeline_fd}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    pass_fds=(writable, lifeline_fd),
                    env=os.environ | {"TMPDIR": _SHORT},
                )
            finally:
                os.close(writable)
                os.close(lifeline_fd)
            is_ready = _is_readable(readable, self._start_seconds)
            self.directory = os.read(readable, 4096).decode().strip() if is_ready else ""
            if not self.directory:
                raise RuntimeError(self.log.strip() or "the simulated fleet did not start")


def _is_readable(descriptor: int, timeout_seconds: float) -> bool:
    """Waits until a descriptor can be read. poll has no limit of 1,024 descriptors, which a test process may exceed."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_seconds * 1000))
