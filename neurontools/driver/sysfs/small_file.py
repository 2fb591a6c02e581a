"""Reads one small file of a tree that may be anything: bounded, never waiting, never following a link to elsewhere."""

from __future__ import annotations

import errno
import os
import stat

MAX_BYTES = 4096
MAX_UINT64 = 2**64 - 1

# A file of sysfs is never a link: following one could open a device, which makes its opener an owner. A pipe in its
# place must not make us wait.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_file(path: str) -> int:
    """A descriptor of a regular file; OSError also where something else has its name (ENODEV)."""
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENODEV, "not a regular file", path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """The content up to the limit; OSError as from the operating system."""
    descriptor = open_file(path)
    try:
        return os.read(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def read_text(path: str, limit_bytes: int = MAX_BYTES) -> str | None:
    """The content without white space around it; None when it can't be read."""
    try:
        return read_bytes(path, limit_bytes).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def read_all(path: str, limit_bytes: int) -> bytes:
    """The content of a file that comes in pieces, as those of /proc do, up to the limit; OSError."""
    descriptor = open_file(path)
    try:
        pieces = []
        left = limit_bytes
        while left > 0 and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def parse_count(raw: bytes) -> int | None:
    """A counter as the driver writes it, with or without newline; None for anything else."""
    digits = raw[:-1] if raw.endswith(b"\n") else raw
    if not digits.isdigit() or len(digits) > 20:
        return None
    value = int(digits)
    return value if value <= MAX_UINT64 else None
