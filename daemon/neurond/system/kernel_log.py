"""Reads the kernel log from /dev/kmsg, or from a file or FIFO of the same format. Writes a file for a simulated host.

The daemon reads at each tick and does not wait for lines with a selector: a regular file can't be waited for, and in
a flood of lines, each line would wake the daemon. Each tick reads a bounded amount.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

from neurontools.driver.kernel_log import TERMINATE_INSTANCE, HardwareError, KernelRecord, parse_kernel_record
from neurontools.util.errors import UserError

_MOST_RECORDS = 2000  # per tick
_MOST_BYTES = 256 * 1024
_LONGEST_RECORD_BYTES = 8192  # the kernel's limit for a record; longer lines in a file are skipped
_RETRY_TICKS = 10
# Only lines with one of these marks are parsed: most kernel messages are about other devices.
_MARKS = (b"NEURON_HW_ERR", b"nd", b"Neuron Driver")

_log = logging.getLogger(__name__)


class KernelLogReader:
    """Reads new kernel log records. To be used in the event loop's thread only.

    Tries to open a missing file again later. Logs the first failure if the user configured the file (`is_named`).
    """

    def __init__(self, path: str, *, is_named: bool = True) -> None:
        self.path = path
        self._is_named = is_named
        self._has_warned = False
        self._file = -1
        self._is_device = False
        self._identity: tuple[int, int] | None = None
        self._incomplete_line = b""
        self._waits_ticks = 0

    def read(self) -> list[KernelRecord]:
        """Returns new records about Neuron devices since the previous call."""
        if self._file < 0 and not self._open():
            return []
        try:
            lines = self._device_lines() if self._is_device else self._file_lines()
        except OSError as error:
            self._warn_once(error.strerror or "it can't be read")
            self.close()
            return []
        records = (parse_kernel_record(line) for line in lines if any(mark in line for mark in _MARKS))
        return [record for record in records if record is not None]

    def close(self) -> None:
        """Closes the kernel log. The next `read` opens it again."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._incomplete_line = -1, b""

    def _open(self) -> bool:
        if self._waits_ticks > 0:
            self._waits_ticks -= 1
            return False
        try:
            # O_NONBLOCK: opening a FIFO without a writer would block.
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            status = os.fstat(self._file)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)):
                self.close()
                raise OSError(22, "neither a file, nor a FIFO, nor a device of the kernel's log")
        except OSError as error:
            self._warn_once(error.strerror or "it can't be opened")
            self._waits_ticks = _RETRY_TICKS
            return False
        self._is_device = stat.S_ISCHR(status.st_mode)
        self._identity = (status.st_dev, status.st_ino)
        self._has_warned = False
        return True

    def _warn_once(self, cause: str) -> None:
        if self._is_named and not self._has_warned:
            _log.warning("%s: the kernel log is not read: %s", self.path, cause)
            self._has_warned = True

    def _device_lines(self) -> list[bytes]:
        """Returns the first line of each new record of /dev/kmsg. The further lines of a record are variables."""
        lines: list[bytes] = []
        while len(lines) < _MOST_RECORDS:
            try:
                record = os.read(self._file, _LONGEST_RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # unread records were overwritten: the next read returns the oldest record
                continue
            if not record:
                break
            lines.append(record.partition(b"\n")[0])
        return lines

    def _file_lines(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._file, _MOST_BYTES)
            if not data:
                self._follow()
                return []
            lines = (self._incomplete_line + data).split(b"\n")
            self._incomplete_line = lines.pop()[:_LONGEST_RECORD_BYTES]
            return [line for line in lines if len(line) <= _LONGEST_RECORD_BYTES]
        return []

    def _follow(self) -> None:
        """Reads a truncated file from its start, and closes a replaced file. Called at the end of the file."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            return
        if os.lseek(self._file, 0, os.SEEK_CUR) > status.st_size:
            os.lseek(self._file, 0, os.SEEK_SET)
            self._incomplete_line = b""
            return
        with contextlib.suppress(OSError):
            path_status = Path(self.path).stat()
            if (path_status.st_dev, path_status.st_ino) != self._identity:
                self.close()


MOST_BYTES = 16 * 2**20  # limit of the file's size: a script that injects faults in a loop must not fill the disk
_ORIGIN = "neuron[injected]:"


class KernelLogWriter:
    """Appends kernel log records to the file at `path`. `close` does not remove the file.

    Raises UserError if the file can't be opened. `serial_numbers` is keyed by device index.
    """

    def __init__(self, path: str, instance_id: str, serial_numbers: dict[int, str | None]) -> None:
        self._path = path
        self._instance_id = instance_id
        self._serial_numbers = serial_numbers
        self._sequence = 0
        self._is_full = False
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644
            )
        except OSError as error:
            raise _no_file(path, error) from None

    def write(self, error: HardwareError) -> None:
        """Appends a hardware error in the driver's format. Drops the error if the file or the disk is full."""
        complete = replace(
            error,
            instance_id=self._instance_id,
            hostname=os.uname().nodename,
            serial_number=self._serial_numbers.get(error.device_index) if error.device_index is not None else None,
            action=TERMINATE_INSTANCE,
        )
        record = KernelRecord(self._sequence, int(time.monotonic() * 1e6), complete.text(_ORIGIN))
        self._sequence += 1
        try:
            if os.fstat(self._descriptor).st_size >= MOST_BYTES:
                reason = f"it has {MOST_BYTES // 2**20} MiB"
            else:
                os.write(self._descriptor, record.line())
                return
        except OSError as failure:
            reason = failure.strerror or str(failure)
        if not self._is_full:
            self._is_full = True
            _log.warning("%s: the kernel log takes no more records: %s", self._path, reason)

    def close(self) -> None:
        os.close(self._descriptor)


def check_writable(path: str) -> None:
    """Raises UserError if the kernel log file is not writable. Does not open or create the file."""
    try:
        whole = Path(path).resolve()
        directory = whole.parent
        if whole.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not directory.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(whole if whole.exists() else directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, RuntimeError) as error:
        raise _no_file(path, error) from None


def _no_file(path: str, error: Exception) -> UserError:
    cause = error.strerror if isinstance(error, OSError) else error
    return UserError(f"can't write a kernel log to {path}: {cause}; give a file that can be written")
