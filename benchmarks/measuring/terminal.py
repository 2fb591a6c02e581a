"""Measures a full-screen program in a fresh terminal from outside."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import random
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.harness.terminal_screen import TerminalScreen

COLUMNS, LINES = 200, 50
_QUERIES = (
    (re.compile(rb"\x1b\[0?c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
    (re.compile(rb"\x1b\]11;\?(\x07|\x1b\\)"), b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
)
_FULL_RATIO = 0.8
_SOON_SECONDS = 5.0
_ANSWER_SECONDS = 2.0


class Session:
    """One program in a terminal. Answers the program's terminal queries and keeps its whole output."""

    def __init__(self, command: list[str], settings_directory: str) -> None:
        self._parts: list[tuple[float, bytes]] = []
        self._phases = random.Random(1)
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        environment["XDG_CONFIG_HOME"] = settings_directory
        self._started = time.monotonic()
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            os.execvpe(command[0], command, environment)

    @property
    def age_seconds(self) -> float:
        """Returns the seconds since the program's start."""
        return time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """Returns the vCPU time of all threads of the program, by its process clock."""
        return time.clock_gettime((~self.pid << 3) | 2)

    @property
    def written_bytes(self) -> int:
        """Returns the number of bytes written so far."""
        return sum(len(data) for _, data in self._parts)

    def memory_bytes(self, name: str) -> int:
        """Returns a value of /proc/PID/status of the program, such as VmHWM or VmRSS."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) * 1024

    def proportional_bytes(self) -> int:
        """Returns the program's proportional memory (Pss)."""
        return int(Path(f"/proc/{self.pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0]) * 1024

    def read_until(self, age_seconds: float) -> None:
        """Reads the program's output until the program has run this long."""
        while self.age_seconds < age_seconds:
            self._read(age_seconds - self.age_seconds)

    def _read(self, seconds: float) -> bool:
        """Reads output that arrives within this time. Returns whether any did."""
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return False
        data = os.read(self._terminal, 1 << 16)
        self._parts.append((self.age_seconds, data))
        for query, answer in _QUERIES:
            if query.search(data):
                os.write(self._terminal, answer)
        return True

    def press(self, key: str) -> float | None:
        """Sends a key at a random moment. Returns the seconds until the first byte of output; None without output."""
        self.read_until(self.age_seconds + 0.2 + self._phases.random() * 0.6)
        sent = time.monotonic()
        os.write(self._terminal, key.encode())
        return time.monotonic() - sent if self._read(_ANSWER_SECONDS) else None

    def key_seconds(self, keys: tuple[str, ...], count: int) -> float | None:
        """Presses the keys in turn, `count` times in all. Returns the median of `press`; None if no key had a reply."""
        answers = [self.press(keys[number % len(keys)]) for number in range(count if keys else 0)]
        known = [seconds for seconds in answers if seconds is not None]
        return statistics.median(known) if known else None

    def first_frame_seconds(self) -> float:
        """Returns the seconds from the start until the screen has 80 % as many filled cells as after 5 s.

        Later screens would be a worse standard, because the plots of a monitor fill more and more cells.
        """
        parts = [(at, data) for at, data in self._parts if at < _SOON_SECONDS]
        screen, decode = TerminalScreen(COLUMNS, LINES), codecs.getincrementaldecoder("utf-8")("ignore").decode
        filled = []
        for _, data in parts:
            screen.feed(decode(data))
            filled.append(screen.filled_cells)
        least = _FULL_RATIO * filled[-1]
        return next(at for (at, _), cells in zip(parts, filled, strict=True) if cells >= least)

    def close(self) -> None:
        """Ends the program."""
        os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(OSError):  # it has ended
            self.read_until(self.age_seconds + 0.2)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@contextlib.contextmanager
def session(command: list[str], btop_settings: str = "") -> Iterator[Session]:
    """Runs a program during a block, with no settings but these of btop."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "btop", "btop.conf")
        file.parent.mkdir()
        file.write_text(btop_settings)
        running = Session(command, directory)
        try:
            yield running
        finally:
            running.close()


@contextlib.contextmanager
def busy_vcpus(processes_per_vcpu: int) -> Iterator[None]:
    """Runs this many busy processes per vCPU during a block."""
    count = processes_per_vcpu * (os.cpu_count() or 1)
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
