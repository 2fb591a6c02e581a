"""Terminal output of neuron-run: the script's output, the progress line below it, and --top."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from types import FrameType
from typing import IO, Any

from neurontools.util.command_lifecycle import write_stderr
from neurontools.util.errors import UserError
from neurontools.util.units import count_text, flops_text, iec_bytes_text

_ERASE = b"\r\x1b[K"
_READ_BYTES = 65536
_STDOUT = 1


class ProgressTerminal:
    """Writes the script's output to a terminal, with a progress line below it.

    Shows the progress line only while the output ends with a newline. Ignores errors of a closed terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._line = b""
        self._is_at_start = True

    def write(self, output: bytes) -> None:
        """Writes output of the script above the progress line."""
        if not output:
            return
        before = _ERASE if self._line and self._is_at_start else b""
        self._is_at_start = output.endswith(b"\n")
        _write_to(self._descriptor, before + output + (self._line if self._is_at_start else b""))

    def show(self, line: str) -> None:
        """Shows a new progress line; "" removes the line."""
        new = line.encode()
        if new == self._line:
            return
        if self._is_at_start:
            _write_to(self._descriptor, _ERASE + new)
        self._line = new


def _write_to(descriptor: int, data: bytes) -> None:
    """Writes all data. Drops the rest if the terminal or pipe is closed."""
    rest = memoryview(data)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def is_foreground_terminal(descriptor: int) -> bool:
    """Returns whether the descriptor is a non-dumb terminal with this process group in the foreground."""
    return os.isatty(descriptor) and os.environ.get("TERM", "") not in ("", "dumb") and is_foreground_group(descriptor)


def is_foreground_group(descriptor: int) -> bool:
    """Returns whether this process group is in the foreground of the terminal at the descriptor."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def pseudo_terminal(like: int) -> Iterator[tuple[int, int]]:
    """Yields both ends of a pseudo-terminal that follows the size of the terminal `like`.

    The pseudo-terminal is in raw mode, because the real terminal already translates line ends.
    """
    outer, inner = os.openpty()
    tty.setraw(inner)

    def resize(_number: int = 0, _frame: FrameType | None = None) -> None:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(like, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            fcntl.ioctl(outer, termios.TIOCSWINSZ, size)

    resize()
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield outer, inner
    finally:
        signal.signal(signal.SIGWINCH, before)
        for descriptor in (outer, inner):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def relay_output(
    outer: int, has_ended: Callable[[], bool], write: Callable[[bytes], None], tick: Callable[[], None]
) -> None:
    """Copies the script's output until the script has ended and all output is read.

    Calls `tick` after each chunk, and at least every 100 ms.
    """
    poll = select.poll()
    poll.register(outer, select.POLLIN)
    while True:
        ended = has_ended()  # checked before reading, so that output written before the end is not lost
        while poll.poll(0 if ended else 100):
            try:
                output = os.read(outer, _READ_BYTES)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                output = b""  # Linux reports EIO when the other end of a pseudo-terminal is closed
            if not output:
                break
            write(output)
            tick()
        if ended:
            return
        tick()


class ProgressLine:
    """Formats the progress line. Computes rates from the last two states of a worker."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None
        self._now: tuple[float, int, int] | None = None

    def line(self, state: dict[str, Any] | None, elapsed_seconds: float, columns: int) -> str:
        """Returns the progress line for a terminal width. Omits the last parts if they do not fit."""
        shown = _elapsed_text(elapsed_seconds)
        for part in self._parts(state):
            if len(shown) + 2 + len(part) >= columns:
                break
            shown += f"  {part}"
        return shown if len(shown) < columns else ""

    def _parts(self, state: dict[str, Any] | None) -> list[str]:
        if state is None:
            return ["starting"]
        now = float(state["wall_seconds"]), int(state["steps_total"]), int(state["flop_total"])
        if self._now is None or now[0] > self._now[0]:
            self._before, self._now = self._now, now
        graphs = state["graphs_compiled_total"]
        parts = [f"step {count_text(now[1])}"] if now[1] else [f"{count_text(state['executions_total'])} executions"]
        if self._before is not None and self._now is not None:
            seconds, steps, flops = (b - a for a, b in zip(self._before, self._now, strict=True))
            if now[1]:
                parts.append(f"{steps / seconds:.1f} steps/s")
            if now[2]:
                parts.append(flops_text(flops / seconds))
        parts.append(f"{count_text(graphs)} graph{'' if graphs == 1 else 's'} compiled")
        parts.append(f"HBM {iec_bytes_text(state['hbm_bytes'])}")
        return parts


def _elapsed_text(seconds: float) -> str:
    """Formats a duration such as 0:42, 12:05 or 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


_END_SECONDS = 5.0


def find_neuron_top() -> str:
    """Returns the path of the neuron-top command. Raises UserError if neuron-top is not installed."""
    directory = Path(sys.executable).parent  # PATH may lack the commands of a virtual environment
    found = shutil.which("neuron-top", path=f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise UserError("--top: neuron-top is not installed; install neurontools, or leave --top out")
    return found


class OutputBacklog:
    """Buffers the script's output in a file while neuron-top occupies the terminal.

    The script never blocks on a full buffer. If the disk is full, output is lost, and the loss is reported.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._backlog_file: IO[bytes] | None = None
        self._lost_bytes = 0
        self._is_shown = False
        self._may_show = Event()
        self._has_ended = Event()
        with contextlib.suppress(OSError):
            self._backlog_file = TemporaryFile(buffering=0)  # noqa: SIM115
        self._thread = Thread(target=self._read, name="backlog", daemon=True)
        self._thread.start()

    def show(self) -> None:
        """Writes the buffered output to standard output, and later output without buffering."""
        self._may_show.set()

    def finish(self) -> None:
        """Writes all remaining output. Call when the script has ended."""
        self._may_show.set()
        self._has_ended.set()
        self._thread.join()

    def _read(self) -> None:
        descriptor = self._source.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            # Checks for the end before it reads, so that output written before the end is not lost.
            # Does not wait for end of file: processes that the script left behind may write forever.
            ended = self._has_ended.is_set()
            output = os.read(descriptor, _READ_BYTES) if poll.poll(0 if ended else 100) else None
            if self._may_show.is_set() and not self._is_shown:
                self._show_backlog()
            if output:
                self._handle_output(output)
            elif ended or output == b"":
                break
        self._may_show.wait()
        if not self._is_shown:
            self._show_backlog()

    def _handle_output(self, output: bytes) -> None:
        if self._is_shown:
            _write_to(_STDOUT, output)
            return
        written = 0
        if self._backlog_file is not None and not self._lost_bytes:
            with contextlib.suppress(OSError):
                written = self._backlog_file.write(output)
        self._lost_bytes += len(output) - written

    def _show_backlog(self) -> None:
        self._is_shown = True
        if self._backlog_file is not None:
            self._backlog_file.seek(0)
            while output := self._backlog_file.read(_READ_BYTES):
                _write_to(_STDOUT, output)
            self._backlog_file.close()
        if self._lost_bytes:
            write_stderr(f"neuron-run: {self._lost_bytes} bytes of output were lost; there was no room to keep them")


def run_neuron_top(child: subprocess.Popen[bytes], environment: dict[str, str], tick: Callable[[], None]) -> None:
    """Runs neuron-top until the script ends. If the user quits neuron-top earlier, shows the script's output."""
    if child.stdout is None:
        raise ValueError("the output of the script is not piped")
    backlog = OutputBacklog(child.stdout)
    top: subprocess.Popen[Any] | None = subprocess.Popen([find_neuron_top()], env=environment)
    try:
        while True:
            try:
                child.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                tick()
            if top is not None and top.poll() is not None:
                top = None
                backlog.show()
    finally:
        if top is not None:
            top.terminate()
            try:
                top.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                top.kill()
                top.wait()
        backlog.finish()
