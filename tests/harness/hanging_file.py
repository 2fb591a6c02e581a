"""Executes a command for which reads of one file can be made to hang for ever, as those of broken hardware do.

Usage: unshare --user --map-root-user --mount python -m tests.harness.hanging_file FILE SWITCH COMMAND... A FUSE
filesystem of one file hides FILE. It gives the content of FILE until SWITCH exists; then it answers no read any more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

from neurontools.util.signals import set_parent_death_signal

# Operations and structures of include/uapi/linux/fuse.h, version 7.31.
_FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 3, 14, 15, 26, 36, 42
_REQUEST_HEADER, _REPLY_HEADER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_ATTRIBUTES, _OPENED = struct.Struct("=QII6Q10I"), struct.Struct("=QII")
_VERSION = struct.Struct("=IIIIHHIIHH32x")
_MOST_REQUEST_BYTES = 1 << 18
_DIRECT_IO = 1


def prefix(path: Path, switch: Path) -> tuple[str, ...]:
    """The prefix of a command that sees `path` hang once `switch` exists."""
    alone = ("unshare", "--user", "--map-root-user", "--mount")
    return (*alone, sys.executable, "-m", "tests.harness.hanging_file", str(path), str(switch))


def is_possible() -> bool:
    """Whether this host permits private mounts, and has FUSE."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return False
    return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False).returncode == 0


def _serve(device: int, content: bytes, switch: Path) -> None:
    while True:
        request = os.read(device, _MOST_REQUEST_BYTES)
        _, operation, unique, *_ = _REQUEST_HEADER.unpack_from(request)
        body, error = b"", 0
        if operation == _INIT:
            body = _VERSION.pack(7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0)
        elif operation == _GETATTR:
            body = _ATTRIBUTES.pack(0, 0, 0, 1, len(content), 1, *[0] * 6, 0o100644, 1, 0, 0, 0, 4096, 0)
        elif operation == _OPEN:
            body = _OPENED.pack(1, _DIRECT_IO, 0)
        elif operation == _READ and not switch.exists():
            offset, count = struct.unpack_from("=QI", request, _REQUEST_HEADER.size + 8)
            body = content[offset : offset + count]
        elif operation == _INTERRUPT:  # the reader was killed, and waits for an answer
            (unique,) = struct.unpack_from("=Q", request, _REQUEST_HEADER.size)
            error = -errno.EINTR
        elif operation in (_READ, _FORGET, _BATCH_FORGET):
            continue
        os.write(device, _REPLY_HEADER.pack(_REPLY_HEADER.size + len(body), error, unique) + body)


def main() -> None:
    path, switch, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    content, pid = path.read_bytes(), os.getpid()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    library = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=100000,user_id=0,group_id=0".encode()
    if library.mount(b"hanging_file", os.fsencode(path), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount", str(path))
    if os.fork() == 0:
        set_parent_death_signal(pid, signal.SIGKILL)
        os.closerange(3, device)  # such as the descriptor by which the command says that it is ready
        _serve(device, content, switch)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
