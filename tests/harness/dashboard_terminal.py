"""neuron-top in a pseudo-terminal of its own, what it shows read back; and a process for it to show."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness.paths import ROOT
from tests.harness.terminal_screen import TerminalScreen
from tests.harness.waiting import HANG_SECONDS, is_readable

TOP = [sys.executable, str(ROOT / "scripts/neuron-top")]


# A process that attaches, reports a model that runs, and goes on until it is killed.
TRAINING = """
import os, socket, sys, time
from neurontools.rpc import call as calls, neuron_pb2 as pb
path = sys.argv[1]
connection = socket.socket(socket.AF_UNIX)
connection.connect(path + ".attach")
token = connection.makefile().readline().strip()
call = lambda name, request: calls.call(path, f"/neurontools.v1.RuntimeService/{name}", request.SerializeToString(),
    timeout_seconds=300)
call("Attach", pb.AttachRequest(token=token, core_count=2, tag="mlp", runtime_version="test"))
print("attached", flush=True)
started, steps = time.monotonic(), 0
while True:
    steps += 1
    now = time.monotonic()
    report = pb.Report(measured_at_seconds=now)
    for index in range(2):
        core = report.cores.add(local_index=index, busy_seconds_total=(now - started) / 2, flop_total=steps * 10**9,
            executions_total=steps, last_execution_at_unix_seconds=time.time())
        core.memory.tensors_bytes = 3 * 2**30
    report.executions.completed_total = steps
    call("Report", pb.ReportRequest(token=token, report=report))
    time.sleep(0.05)
"""


@contextlib.contextmanager
def training(socket: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains on two cores of the daemon at this socket."""
    process = subprocess.Popen([sys.executable, "-c", TRAINING, socket], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "attached\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Terminal:
    """neuron-top in a terminal of its own; what it shows is read back."""

    def __init__(
        self, *arguments: str, width: int = 120, height: int = 40, home: Path, shell: tuple[str, ...] = ()
    ) -> None:
        self.screen = TerminalScreen(width, height)
        self.raw = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # what is read may end within a character
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "XDG_CONFIG_HOME": str(home),
            "COLORTERM": "truecolor",
        }
        for name in ("NO_COLOR", "COLUMNS", "LINES", "NEURONTOOLS_SOCKET", "NEURONTOOLS_SIMULATE"):
            environment.pop(name, None)
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.chdir(home)
            command = [*shell, *TOP, *arguments]
            os.execvpe(command[0], command, environment)
        self.exit_code: int | None = None
        self.is_over = False  # nothing has the terminal open any more

    def read(self, seconds: float = 0.05) -> bool:
        """Read what there is; whether there was anything."""
        data = b""
        if self.descriptor < 0:
            time.sleep(seconds)
        elif is_readable(self.descriptor, seconds):
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                data = b""
                self.is_over = True
            self.raw += data
            self.screen.feed(self._decoder.decode(data))
        return bool(data)

    def until(self, condition: Callable[[str], object]) -> str:
        deadline = time.monotonic() + HANG_SECONDS
        while not condition(self.screen.text):
            assert not self.is_over, f"it ended with {self.ends()}:\n{self.raw[-500:]!r}\n{self.screen.text}"
            assert time.monotonic() < deadline, f"did not come to pass:\n{self.screen.text}"
            self.read()
        return self.screen.text

    def shows(self, words: str) -> str:
        return self.until(lambda text: words in text)

    def press(self, keys: str, words: str = "") -> None:
        """Types keys, and waits until these words are shown."""
        os.write(self.descriptor, keys.encode())
        if words:
            self.shows(words)

    def press_until(self, key: str, words: str) -> None:
        """Presses a key again until it shows this: what is typed while Textual begins may be lost."""
        while words not in self.screen.text:
            self.press(key)
            self.read(1.0)

    def resize(self, width: int, height: int) -> None:
        self.screen = TerminalScreen(width, height)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def ends(self) -> int:
        deadline = time.monotonic() + HANG_SECONDS
        while self.exit_code is None:
            assert time.monotonic() < deadline, "it did not end"
            self.read()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.exit_code = os.waitstatus_to_exitcode(status)
                while self.read():
                    pass
        return self.exit_code

    def hang_up(self) -> None:
        """Closes the terminal's other end, as who closes a window does."""
        os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.descriptor >= 0:
            os.close(self.descriptor)
