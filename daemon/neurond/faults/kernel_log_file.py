"""The kernel's log of a simulated host: a file in the form of /dev/kmsg, which node agents can follow."""

from __future__ import annotations

import errno
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from neurontools.driver.kernel_log import TERMINATE_INSTANCE, HardwareError, KernelRecord
from neurontools.util.errors import UserError

MOST_BYTES = 16 * 2**20  # a script that meets a fault again and again must not fill the disk
_ORIGIN = "neuron[injected]:"

_log = logging.getLogger(__name__)


class KernelLogFile:
    """The file at `path`, to which records are added; UserError when it can't be had. `close` leaves it.

    `serial_numbers` are those of the devices, by index.
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
        """Adds an error of the hardware, as the runtime has the driver print it. A disk that is full loses it."""
        told = replace(
            error,
            instance_id=self._instance_id,
            hostname=os.uname().nodename,
            serial_number=self._serial_numbers.get(error.device_index) if error.device_index is not None else None,
            action=TERMINATE_INSTANCE,
        )
        record = KernelRecord(self._sequence, int(time.monotonic() * 1e6), told.text(_ORIGIN))
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
        """Closes the file."""
        os.close(self._descriptor)


def check_path(path: str) -> None:
    """UserError when the file could not be had; it is neither made nor opened."""
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
