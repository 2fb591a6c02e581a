"""Processes that run a workload on the cores of a host, with the software stack that this host has for its devices."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from neurontools.client.daemon_client import Client
from neurontools.driver.environment import LNC, VISIBLE_CORES, logical_neuroncore_config
from neurontools.model import SourceKind
from neurontools.util.signals import PARENT_PID_VARIABLE, blocking_interrupts

SIMULATED_STACK = "neurontools.runtime: the cores are simulated, and the CPU computes"
AWS_STACK = "torch_neuronx of the AWS Neuron SDK"
_EXECUTION_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
_MOST_LINE_BYTES = 2**16
_END_SECONDS = 5.0
_PEER_SECONDS = 10.0
_REMOVED_VARIABLES = frozenset(
    ("NEURON_RT_NUM_CORES", "NEURON_CC_FLAGS", "XLA_USE_BF16", "XLA_DOWNCAST_BF16", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
)


class WorkloadHost:
    """The host of a daemon, as a place for workloads. Use it as a context manager: that ends all its processes.

    `snapshot` is the state before the first process. `logical_neuroncore_config` (LNC) is None if the host's default
    counts. An execution fails after `execution_timeout_seconds`, unless the user has set another limit.
    """

    def __init__(self, socket_path: str, execution_timeout_seconds: int) -> None:
        self.socket_path = socket_path
        self._execution_timeout_seconds = execution_timeout_seconds
        with Client(socket_path) as client:
            self.snapshot = client.snapshot()
        self.is_simulated = self.snapshot.source is SourceKind.SIMULATED
        lnc = logical_neuroncore_config(os.environ)
        self.logical_neuroncore_config = lnc if lnc in self.snapshot.instance.logical_neuroncore_configs else None
        self._stack = ExitStack()
        self.directory = ""

    def __enter__(self) -> WorkloadHost:
        self.directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="neuron-diag-"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def stack_name(self) -> str | None:
        """Name of the software that computes; None if this host has none for its devices."""
        if self.is_simulated:
            return SIMULATED_STACK if find_spec("torch") is not None else None
        return AWS_STACK if find_spec("torch_neuronx") is not None else None

    @property
    def missing_stack(self) -> tuple[str, str]:
        """What to say if `stack_name` is None: the cause and the next step."""
        if self.is_simulated:
            return "torch is not installed here", "pip install 'neurontools[runtime]'"
        return "torch_neuronx is not installed here", "activate the Python environment of the AWS Neuron SDK"

    def start(self, plan: Mapping[str, Any], cores: str, *, script: str = "workload.py") -> WorkloadProcess:
        """Starts a script of this folder in a process that holds these logical cores, such as `0-3`."""
        launcher = ["-m", "neurontools.runtime"] if self.is_simulated else []
        command = [sys.executable, *launcher, str(Path(__file__).with_name(script)), json.dumps(plan)]
        changes = {VISIBLE_CORES: cores}
        if "rank" in plan:
            changes |= {"RANK": str(plan["rank"]), "WORLD_SIZE": str(plan["size"])}
        return WorkloadProcess(command, self._environment(changes), self._stack)

    def _environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
        environment |= {
            "NEURONTOOLS_SOCKET": self.socket_path,
            "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1",
            _EXECUTION_TIMEOUT: os.environ.get(_EXECUTION_TIMEOUT, str(self._execution_timeout_seconds)),
            PARENT_PID_VARIABLE: str(os.getpid()),
            **changes,
        }
        if self.logical_neuroncore_config is not None:
            environment[LNC] = str(self.logical_neuroncore_config)
        if self.is_simulated:
            environment |= {
                "NEURONTOOLS_DEVICE": "xla",
                "NEURON_COMPILE_CACHE_URL": f"{self.directory}/cache",
                "OMP_NUM_THREADS": "1",
            }
        return environment


class WorkloadProcess:
    """A process of a workload. It ends when `stack` closes."""

    def __init__(self, command: list[str], environment: dict[str, str], stack: ExitStack) -> None:
        self.failure = ""  # why the process wrote no further line; "" while it runs, or after a good end
        self._rest = b""  # begin of a line
        self._errors: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        with blocking_interrupts():
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors
            )
        stack.callback(self.end)

    def lines(self, silence_seconds: float) -> Iterator[dict[str, Any]]:
        """Yields the lines of the process until it ends, or until it is silent for so long."""
        return (line for _, line in lines_of_all([self], silence_seconds))

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the output; None after the end."""
        stdout = self._process.stdout
        return None if stdout is None or stdout.closed else stdout.fileno()

    def read_lines(self) -> Iterator[dict[str, Any]]:
        """Yields the lines that can be read now. At the end of the output, waits for the end of the process."""
        data = b"" if self.descriptor is None else os.read(self.descriptor, _MOST_LINE_BYTES)
        if not data:
            code = self._process.wait()
            self.fail("" if code == 0 else self._last_error(code))
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                yield json.loads(line)

    def fail(self, reason: str) -> None:
        """Ends the process, with this reason as its failure."""
        self.failure = reason
        self.end()

    def end(self) -> None:
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _last_error(self, code: int) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _MOST_LINE_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the test process ended with {end}" + (f": {lines[-1][:300]}" if lines else "")


def lines_of_all(
    processes: Sequence[WorkloadProcess], silence_seconds: float
) -> Iterator[tuple[WorkloadProcess, dict[str, Any]]]:
    """Yields the lines of several processes until all have ended, or until all are silent for so long.

    After the first failure, the other processes get only 10 s, because they may wait for the failed one.
    """
    while waiting := {process.descriptor: process for process in processes if process.descriptor is not None}:
        failed = any(process.failure for process in processes)
        patience = min(silence_seconds, _PEER_SECONDS) if failed else silence_seconds
        ready = select.select([*waiting], [], [], patience)[0]
        for descriptor in ready:
            for line in waiting[descriptor].read_lines():
                yield waiting[descriptor], line
        if not ready:
            for process in waiting.values():
                process.fail("a peer failed" if failed else f"no answer within {silence_seconds:g} s")
