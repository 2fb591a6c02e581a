"""`neuron-run --top`: neuron-top in the terminal while the script runs; the script's output waits meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import IO, Any

from neurontools.cli.line.telling import tell
from neurontools.util.errors import UserError

_AT_ONCE_BYTES = 65536
_END_SECONDS = 5.0


def program() -> str:
    """Where neuron-top is; UserError when it isn't installed."""
    beside = Path(sys.executable).parent  # an environment's commands need not be on the PATH
    found = shutil.which("neuron-top", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise UserError("--top: neuron-top is not installed; install neurontools, or leave --top out")
    return found


class Backlog:
    """Output of a script that is kept until it can be shown, and from then on shown as it comes.

    A full disk loses output, and says how much; the script never notices.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._kept: IO[bytes] | None = None
        self._lost_bytes = 0
        self._is_shown = False
        self._may_show = Event()
        self._has_ended = Event()
        with contextlib.suppress(OSError):
            self._kept = TemporaryFile(buffering=0)  # noqa: SIM115
        self._thread = Thread(target=self._read, name="backlog", daemon=True)
        self._thread.start()

    def show(self) -> None:
        """From here on, what was kept and what is to come goes to standard output."""
        self._may_show.set()

    def finish(self) -> None:
        """Shows all that the script wrote; to be called when it has ended."""
        self._may_show.set()
        self._has_ended.set()
        self._thread.join()

    def _read(self) -> None:
        descriptor = self._source.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            # Asked first: what it wrote before it ended is still to come. What it left running may write for ever.
            ended = self._has_ended.is_set()
            output = os.read(descriptor, _AT_ONCE_BYTES) if poll.poll(0 if ended else 100) else None
            if self._may_show.is_set() and not self._is_shown:
                self._show_kept()
            if output:
                self._take(output)
            elif ended or output == b"":
                break
        self._may_show.wait()
        if not self._is_shown:
            self._show_kept()

    def _take(self, output: bytes) -> None:
        if self._is_shown:
            _write(output)
            return
        written = 0
        if self._kept is not None and not self._lost_bytes:
            with contextlib.suppress(OSError):
                written = self._kept.write(output)
        self._lost_bytes += len(output) - written

    def _show_kept(self) -> None:
        self._is_shown = True
        if self._kept is not None:
            self._kept.seek(0)
            while output := self._kept.read(_AT_ONCE_BYTES):
                _write(output)
            self._kept.close()
        if self._lost_bytes:
            tell(f"neuron-run: {self._lost_bytes} bytes of output were lost; there was no room to keep them")


def show(child: subprocess.Popen[bytes], environment: dict[str, str], tick: Callable[[], None]) -> None:
    """neuron-top until the script ends. Whoever leaves it earlier sees the output instead."""
    if child.stdout is None:
        raise ValueError("the output of the script is not piped")
    backlog = Backlog(child.stdout)
    top: subprocess.Popen[Any] | None = subprocess.Popen([program()], env=environment)
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
            _end(top)
        backlog.finish()


def _end(top: subprocess.Popen[Any]) -> None:
    top.terminate()
    try:
        top.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        top.kill()
        top.wait()


def _write(output: bytes) -> None:
    rest = memoryview(output)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(1, rest) :]
