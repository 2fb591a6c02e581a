"""neuron-run over a script of a test: until it ends, or as a process that a test talks to."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.waiting import HANG_SECONDS, is_readable, wait_until

MODULE = "neurontools.cli.run.command"
COMMAND = (sys.executable, "-m", MODULE)

TRAINING = """
import os, sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
open(f"pid{xm.get_ordinal()}", "w").write(str(os.getpid()))
while not os.path.exists("stop"):
    optimizer.zero_grad()
    (weight @ weight).sum().backward()
    xm.optimizer_step(optimizer); xm.mark_step()
    with torch.no_grad(): weight.fill_(1.0)
    open(f"alive{xm.get_ordinal()}", "a").write(".")
"""
"""Trains on as many workers as there are until there is a file `stop`; writes its PID, and a dot a step."""


def environment(directory: Path, socket: str = "", **changes: str) -> dict[str, str]:
    """The variables of a user who has none of ours set, with a compile cache of the test's own and no daemon."""
    ours = ("NEURON", "XLA_", "TORCHELASTIC", "USE_TORCH")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        "PYTHONPATH": PYTHONPATH,
        "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
        "NEURONTOOLS_SOCKET": socket or str(directory / "none.sock"),
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm",
        **changes,
    }


def neuron_run(directory: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return python_process.run(
        [*COMMAND, *arguments],
        loaded=python_process.TORCH,
        text=True,
        cwd=directory,
        env=environment(directory, **changes),
    )


def summary_of(directory: Path, script: str, *options: str, **changes: str) -> dict[str, Any]:
    """What neuron-run tells of a script that ends well, which is written to script.py."""
    (directory / "script.py").write_text(script)
    where = ("-q", "--simulate", "trn1.2xlarge", "--summary-json", "out.json")
    run = neuron_run(directory, *where, *options, "script.py", **changes)
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads((directory / "out.json").read_text())
    return document


_MEASURED = re.compile(r"second|ratio|^pid$|^hbm_(?!limit)|^(code|fixed)_bytes$")
_MAYBE_0 = re.compile(r"run_delay|host_seconds|input_wait|compile_seconds")


def stable(value: Any, name: str = "") -> Any:
    """The part of a summary that is the same for each run: "measured" stands for times and sizes."""
    if isinstance(value, dict):
        return {key: stable(each, key) for key, each in value.items() if key != "verdict"}
    if isinstance(value, list):
        return [stable(each) for each in value]
    if name == "file":
        return Path(value).name
    is_measured = _MEASURED.search(name) and value is not None
    return "measured" if is_measured and (value or _MAYBE_0.search(name)) else value


class Started:
    """neuron-run with these arguments, its output in pipes."""

    def __init__(self, directory: Path, *arguments: str, socket: str = "", **changes: str) -> None:
        self.directory = directory
        self.process = python_process.popen(
            [*COMMAND, *arguments],
            loaded=python_process.TORCH,
            cwd=directory,
            env=environment(directory, socket, **changes),
            **{**python_process.PIPES, "stdin": subprocess.DEVNULL},
        )

    def pid_of(self, rank: int = 0) -> int:
        """The PID of a worker that has trained some steps."""
        wait_until(lambda: len(self._read(f"alive{rank}")) > 5)
        return int(self._read(f"pid{rank}"))

    def stop_training(self) -> None:
        (self.directory / "stop").touch()

    def end(self) -> tuple[int, str, str]:
        """Waits for the end: exit code, output, errors."""
        output, errors = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, output, errors

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=HANG_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read(self, name: str) -> str:
        try:
            return (self.directory / name).read_text()
        except FileNotFoundError:
            return ""


class OnTerminal:
    """neuron-run in a terminal of its own, so wide."""

    def __init__(self, directory: Path, columns: int, *arguments: str, socket: str = "", **changes: str) -> None:
        self._own, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.written = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        script = (
            "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            f"runpy.run_module({MODULE!r}, run_name='__main__', alter_sys=True)"
        )
        self.process = python_process.popen(
            [sys.executable, "-c", script, *arguments],
            loaded=python_process.TORCH,
            cwd=directory,
            env=environment(directory, socket, **changes),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def read_until(self, pattern: str) -> str:
        """Reads until what was written has this in it; all that was written."""
        deadline = time.monotonic() + HANG_SECONDS
        while re.search(pattern, self.written) is None:
            assert time.monotonic() < deadline, self.written
            assert self._read(), self.written
        return self.written

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def end(self) -> tuple[int, str]:
        """Waits for the end: exit code and all that was written."""
        while self._read():
            pass
        return self.process.wait(HANG_SECONDS), self.written

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            while self._read():
                pass
            self.process.wait(HANG_SECONDS)
        os.close(self._own)

    def _read(self) -> bool:
        """Reads something; False at the end."""
        if not is_readable(self._own):
            return False
        try:
            data = os.read(self._own, 65536)
        except OSError:
            return False
        self.written += self._decoder.decode(data)  # what is read may end within a character
        return bool(data)
