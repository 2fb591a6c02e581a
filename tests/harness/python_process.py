"""Python processes that begin with modules imported: as subprocess starts them, for a fraction of the CPU time.

A test that is about how a process starts (imports, import hooks, flags of the interpreter, its command line) uses
subprocess itself. All others start theirs here: `popen` and `run` take what those of subprocess take.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness import loaded_interpreter
from tests.harness.loaded_interpreter import ForkingPopen
from tests.harness.paths import PYTHONPATH
from tests.harness.waiting import HANG_SECONDS

_SERVER = Path(__file__).with_name("loaded_interpreter.py")
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

MONITORS = (
    "neurond.daemon",
    "neurond.startup.configuration",
    "neurontools.cli.daemon.private",
    "neurontools.exporters.monitor.recorder",
    "neurontools.exporters.monitor.configuration",
)
TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.launcher.api",
    "torch.utils.data",
    "torch.utils.flop_counter",
    "neurontools.runtime.launch.device_registration",
    "neurontools.runtime.torch_device.storage_patches",
    *MONITORS,
)


def user_environment(**variables: str) -> dict[str, str]:
    """These variables beside those of a user who has set none of ours; one that is empty is left out."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XLA_"))}
    return {name: value for name, value in {**inherited, "PYTHONPATH": PYTHONPATH, **variables}.items() if value}


PIPES: dict[str, Any] = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), "text": True}


def popen(command: Sequence[Any], *, loaded: tuple[str, ...], **options: Any) -> subprocess.Popen[Any]:
    """Starts a process of this interpreter that has these modules imported; for real where there are none."""
    if not loaded or not _can_set_command_line():
        return subprocess.Popen(command, **options)
    return _LoadedPopen(loaded, command, **options)


def run(command: Sequence[Any], *, loaded: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Starts such a process and waits for its end; its output is captured."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with popen(command, loaded=loaded, **options) as process:
        try:
            output, errors = process.communicate(timeout=HANG_SECONDS)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@cache
def _can_set_command_line() -> bool:
    """Whether the kernel lets a process say what its command line is (CONFIG_CHECKPOINT_RESTORE)."""
    pid = os.fork()
    if pid == 0:
        os._exit(not loaded_interpreter.set_command_line([sys.executable], {}))
    return os.waitpid(pid, 0)[1] == 0


class _LoadedPopen(ForkingPopen):
    """Popen whose process is a fork of a loaded interpreter, where that can be had."""

    def __init__(self, loaded: tuple[str, ...], command: Sequence[Any], **options: Any) -> None:
        self._modules = loaded
        super().__init__(command, **options)

    def _start(self, process: dict[str, Any], files: dict[int, int]) -> int:
        return _interpreter(self._modules).start(process, files)


class _Interpreter:
    """A loaded interpreter of this process; it ends with it."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(number), *modules],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
            )
        atexit.register(self._end)

    def start(self, process: dict[str, Any], files: dict[int, int]) -> int:
        """The PID of a new child of this process."""
        message = json.dumps({**process, "files": list(files)}).encode()
        # Orphans of descendants become our children: the new process, whose parent ends when it has made it.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [message], list(files.values()))
            return int(self._socket.recv(20))
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _end(self) -> None:
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


@cache
def _interpreter(modules: tuple[str, ...]) -> _Interpreter:
    return _Interpreter(modules)
