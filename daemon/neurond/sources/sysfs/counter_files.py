"""Counter files that are read again and again: opened once and re-read in place.

Files of sysfs answer each read anew. In a tree on another file system a file may have been replaced since it was
opened; there each read first looks whether it still has a name.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence

from neurontools.driver.sysfs_files import open_file, parse_count

MAX_BYTES = 64
# Descriptors left for sockets, subscribers and everything else the daemon opens.
_RESERVED_DESCRIPTORS = 512
# A file that is not there is looked for again this many reads later.
_RETRY_READS = 16

_CLOSED, _NOT_KEPT = -1, -2
_MISSING = os.strerror(errno.ENOENT)


class DescriptorBudget:
    """How many files may be kept open; raises the process's own limit as far as it may."""

    def __init__(self, wanted: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = wanted + _RESERVED_DESCRIPTORS
        if soft != resource.RLIM_INFINITY and soft < needed:
            raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
                soft = raised
            except (ValueError, OSError):
                pass
        self.left = wanted if soft == resource.RLIM_INFINITY else max(0, soft - _RESERVED_DESCRIPTORS)


class CounterFiles:
    """Some files of one directory. `values[i]` is the latest count in `paths[i]`, None when it can't be read.

    `problems` tells of those, by what is wrong: an example of a path and how many. `calls` counts system calls of the
    latest read. Not safe for threads.
    """

    def __init__(
        self, directory: str, paths: Sequence[str], budget: DescriptorBudget, *, may_be_replaced: bool = True
    ) -> None:
        self.values: list[int | None] = [None] * len(paths)
        self.problems: dict[str, tuple[str, int]] = {}
        self.calls = 0
        self._directory = directory
        self._paths = tuple(paths)
        self._budget = budget
        self.may_be_replaced = may_be_replaced
        self._descriptors = [_CLOSED] * len(paths)
        self._raw: list[bytes | None] = [None] * len(paths)
        self._wait = [0] * len(paths)
        self._failed: dict[int, str] = {}

    def read(self) -> list[int | None]:
        """Reads all files; the list is the same one each time."""
        pread, raws, values = os.pread, self._raw, self.values
        fstat = os.fstat if self.may_be_replaced else None
        calls = 0
        for position, descriptor in enumerate(self._descriptors):
            if descriptor >= 0:
                try:
                    if fstat is not None:
                        calls += 1
                        if not fstat(descriptor).st_nlink:
                            self._close(position)
                            self._open_and_read(position)
                            continue
                    raw = pread(descriptor, MAX_BYTES, 0)
                    calls += 1
                except OSError as error:
                    self._close(position)
                    self._set_failed(position, error)
                    continue
                if raw != raws[position]:
                    self._take(position, raw)
            elif self._wait[position]:
                self._wait[position] -= 1
            else:
                self._open_and_read(position)
        self.calls += calls
        self._collect_problems()
        return values

    @property
    def kept(self) -> list[int]:
        """The descriptors of the files that are open."""
        return [descriptor for descriptor in self._descriptors if descriptor >= 0]

    @property
    def is_missing(self) -> bool:
        """Whether one of the files was not there at the latest read."""
        return _MISSING in self.problems

    def take_calls(self) -> int:
        """System calls since this was last asked."""
        calls, self.calls = self.calls, 0
        return calls

    def close(self) -> None:
        """Closes all files."""
        for position in range(len(self._descriptors)):
            self._close(position)

    def _open_and_read(self, position: int) -> None:
        try:
            descriptor = open_file(f"{self._directory}/{self._paths[position]}")
            self.calls += 2
        except (OSError, ValueError) as error:
            self.calls += 1
            self._set_failed(position, error)
            return
        try:
            raw = os.pread(descriptor, MAX_BYTES, 0)
            self.calls += 1
        except OSError as error:
            os.close(descriptor)
            self._set_failed(position, error)
            return
        self._take(position, raw)
        if self._budget.left > 0:
            self._budget.left -= 1
            self._descriptors[position] = descriptor
        else:
            os.close(descriptor)
            self.calls += 1
            self._descriptors[position] = _NOT_KEPT

    def _take(self, position: int, raw: bytes) -> None:
        self._raw[position] = raw
        value = self.values[position] = parse_count(raw)
        if value is None:
            self._failed[position] = "is empty" if not raw.strip() else "holds no count"
        else:
            self._failed.pop(position, None)

    def _set_failed(self, position: int, error: OSError | ValueError) -> None:
        self._raw[position] = None
        self.values[position] = None
        number = error.errno if isinstance(error, OSError) else None
        self._failed[position] = os.strerror(number) if number else "has no readable path"
        if number not in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.EINTR, errno.EAGAIN):
            self._wait[position] = _RETRY_READS

    def _close(self, position: int) -> None:
        descriptor, self._descriptors[position] = self._descriptors[position], _CLOSED
        if descriptor >= 0:
            self._budget.left += 1
            os.close(descriptor)

    def _collect_problems(self) -> None:
        self.problems = {}
        for position, cause in self._failed.items():
            path, count = self.problems.get(cause, (self._paths[position], 0))
            self.problems[cause] = (path, count + 1)


def may_be_replaced(directory: str) -> bool:
    """Whether the files of a directory can be replaced by others of the same name: not in sysfs itself."""
    try:
        number = os.stat(directory).st_dev  # noqa: PTH116
        device = f"{os.major(number)}:{os.minor(number)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:  # noqa: PTH123
            for line in mounts:
                left, _, right = line.partition(" - ")
                if left.split()[2] == device:
                    return right.split()[0] != "sysfs"
    except (OSError, IndexError):
        pass
    return True
