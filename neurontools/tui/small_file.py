"""Reading a file of settings, whatever is in its place: a pipe is not waited for, and no large file read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST_BYTES = 2**20


def read_text(path: Path) -> str | None:
    """The text of a file; None where there is none. OSError or ValueError when it can't be read as text."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("it is longer than 1 MiB")
    return content.decode("utf-8")
