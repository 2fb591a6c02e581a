"""What the runtime says on standard error, next to what the script says there: a line at a time, never an error."""

from __future__ import annotations

import sys

from neurontools.util.terminal import escape_controls

_LONGEST_LINE = 1000
_told: set[str] = set()


def write_stderr_line(text: str, *, apart: bool = False) -> bool:
    """Writes a line to standard error; returns False if the disk is full or the stream is closed or missing.

    `apart`: writes a newline first, because another process may have left an unfinished line.
    """
    line = "\n" * apart + escape_controls(text.partition("\n")[0])[:_LONGEST_LINE]
    stream = sys.stderr
    if stream is None:
        return False
    try:
        stream.write(f"{line}\n")  # in one piece: ranks share the stream
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def warn_once(matter: str, text: str) -> None:
    """A line under our name, unless this matter was told before in this process."""
    if matter not in _told:
        _told.add(matter)
        write_stderr_line(f"neurontools: {text}")
