"""A terminal that the script's output and neuron-run's line of progress share.

The script writes to a pseudo-terminal of the same size, and what comes out of it is written above the line: so neither
ever stands in the midst of the other, and what the script finds is a terminal still.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from types import FrameType

from neurontools.util.terminal import terminal_size

_ERASE = b"\r\x1b[K"
_AT_ONCE_BYTES = 65536


class Terminal:
    """What is on a terminal: output that ends somewhere, and the line below it while the output is at a line's start.

    A terminal that can't be written to any more loses what is written, and nothing else.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._line = b""
        self._is_at_start = True

    def write(self, output: bytes) -> None:
        """Output of the script; the line makes way for it and comes back below it."""
        if not output:
            return
        before = _ERASE if self._line and self._is_at_start else b""
        self._is_at_start = output.endswith(b"\n")
        self._send(before + output + (self._line if self._is_at_start else b""))

    def show(self, line: str) -> None:
        """Shows a line, instead of the one before; an empty one removes it."""
        new = line.encode()
        if new == self._line:
            return
        if self._is_at_start:
            self._send(_ERASE + new)
        self._line = new

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


def can_show(descriptor: int) -> bool:
    """Whether a line can be drawn there: a terminal that obeys, with this process in its foreground."""
    if not os.isatty(descriptor) or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def columns(descriptor: int) -> int:
    """How wide a terminal is."""
    return terminal_size(descriptor)[0]


@contextlib.contextmanager
def pseudo_terminal(like: int) -> Iterator[tuple[int, int]]:
    """The two ends of a pseudo-terminal that always is as large as another one; both are closed at the end.

    What is written to the second end comes out of the first unchanged: the real terminal makes line ends.
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


def relay(outer: int, has_ended: Callable[[], bool], write: Callable[[bytes], None], tick: Callable[[], None]) -> None:
    """Hands on what comes out of a descriptor until the script has ended and nothing is left; calls `tick` often."""
    poll = select.poll()
    poll.register(outer, select.POLLIN)
    while True:
        ended = has_ended()  # asked first: what it wrote before it ended is still to come
        while poll.poll(0 if ended else 100):
            try:
                output = os.read(outer, _AT_ONCE_BYTES)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                output = b""  # nobody has the other end any more
            if not output:
                break
            write(output)
            tick()
        if ended:
            return
        tick()
