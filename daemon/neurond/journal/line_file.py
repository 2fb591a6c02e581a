"""Lines of JSON in two files below the state directory, bounded: what outlives the daemon.

A line is there whole or not at all: what a kill or a full disk cut off is cut off at the next start, or at once.
Written in a thread of its own, so that a disk that hangs keeps nobody waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import stat
import threading
from collections.abc import Callable

from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.rate_limited_log import RateLimitedLogger

MOST_LINE_BYTES = 8192
MOST_FILE_BYTES = 2**20  # of each of the two
_MOST_WAITING = 4096
CLOSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


class LineFile:
    """The files NAME.jsonl and NAME.1.jsonl in one directory, for one daemon at a time; OSError when they can't be had.

    `what` is kept there, in words. `group_id`: its members may read them (0640, else 0600). `content` is what they held
    when they were opened, the older first, in whole lines.
    """

    def __init__(
        self, path: str, name: str, what: str, group_id: int | None = None, most_file_bytes: int = MOST_FILE_BYTES
    ) -> None:
        self._name, self._older_name = f"{name}.jsonl", f"{name}.1.jsonl"
        self._what = what
        self._group_id = group_id
        self._most_file_bytes = most_file_bytes
        self._tell_trouble = RateLimitedLogger(_log, logging.WARNING)
        self._directory = Directory.open(path, make_mode=0o700)
        self._file = -1
        try:
            self._check_directory()
            self._file = self._opened()
            older = b""
            with contextlib.suppress(FileNotFoundError):
                older = self._directory.read(self._older_name, self._most_bytes) or b""
            self.content = older[: older.rfind(b"\n") + 1] + self._mended()
        except BaseException:
            self._let_go()
            raise
        self._waiting: queue.Queue[Callable[[], bytes] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def add(self, line: Callable[[], bytes]) -> None:
        """Has the line written that this makes in the thread; where too many wait for a disk that hangs it is not.

        It ends with a newline and has MOST_LINE_BYTES at most; ValueError is told and stops nothing.
        """
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._tell_trouble("%s: the disk does not answer; %s is not kept", self._directory.path, self._what)

    def close(self, wait_seconds: float = CLOSE_SECONDS) -> None:
        """Writes what waits, and closes the files; does not wait long for a disk that hangs."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(wait_seconds)
        if not self._thread.is_alive():
            self._let_go()

    @property
    def _most_bytes(self) -> int:
        return self._most_file_bytes + MOST_LINE_BYTES

    def _check_directory(self) -> None:
        """NotTrusted where others could put their own files in the place of ours."""
        directory = self._directory
        if directory.exposed is not None:
            raise NotTrusted(directory.exposed, "may be changed by everybody")
        if directory.mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotTrusted(directory.path, "may be changed by others")
        if directory.is_made and self._group_id is not None:
            directory.set_mode(0o750, self._group_id)

    def _opened(self) -> int:
        """The descriptor of the current file, locked; BlockingIOError when another daemon has it."""
        descriptor = self._directory.open_lock(self._name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._group_id is not None:
                os.fchown(descriptor, -1, self._group_id)
            os.fchmod(descriptor, 0o600 if self._group_id is None else 0o640)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _mended(self) -> bytes:
        """The content of the current file, from which a line that was cut off is taken away."""
        content = b""
        if os.fstat(self._file).st_size <= self._most_bytes:
            content = os.pread(self._file, self._most_bytes, 0)
        whole = content.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        return content[:whole]

    def _work(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._write(line())
            except ValueError as error:
                self._tell_trouble("%s is not kept: %s", self._what, error)
            except OSError as error:
                self._tell_trouble("%s: %s is not kept: %s", self._directory.path, self._what, error.strerror)

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        if size + len(line) > self._most_file_bytes:
            self._turn_over()
            size = 0
        try:
            if os.pwrite(self._file, line, size) < len(line):
                raise OSError(28, "no space left on device")
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _turn_over(self) -> None:
        """The current file becomes the older one, which is gone."""
        descriptor = self._directory.descriptor
        os.rename(self._name, self._older_name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        before, self._file = self._file, -1
        os.close(before)
        self._file = self._opened()

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._directory.close()
