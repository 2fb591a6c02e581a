"""How a process that is no child of ours ended: from its pidfd, or from /proc while nobody has waited for it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from functools import cache
from pathlib import Path

# struct pidfd_info as of Linux 6.13 (include/uapi/linux/pidfd.h): mask, cgroupid, eleven ids, exit_code.
_INFO = struct.Struct("QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3  # Linux 6.15
_MAX_STAT_BYTES = 4096
_CAP_SYS_PTRACE = 19


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended, waited for or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def exit_status(pidfd: int, pid: int, uid: int) -> int | None:
    """The code that a process ended with, or the negative number of the signal that ended it; None: not known (yet).

    The kernel tells it of a pidfd from Linux 6.15 on and once the process was waited for; before that /proc has it, for
    those who may trace the process: others read a 0 there.
    """
    status = _from_pidfd(pidfd)
    if status is None and (uid == os.geteuid() or _may_trace()):
        status = _from_stat(pid)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _from_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # older than 6.13, or it has not ended
        return None
    fields = _INFO.unpack(info)
    return int(fields[-1]) if fields[0] & _WITH_EXIT else None


def _from_stat(pid: int) -> int | None:
    """The last field of the stat of a zombie; None for anything else."""
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            fields = file.read(_MAX_STAT_BYTES).rpartition(b")")[2].split()
        return int(fields[49]) if fields[0] == b"Z" else None
    except (OSError, ValueError, IndexError):
        return None


@cache
def _may_trace() -> bool:
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False
