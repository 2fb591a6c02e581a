"""Writes lines of the runtime to standard error, which the script uses too. Never raises."""

from __future__ import annotations

import sys

from neurontools.util.terminal import escape_controls

_MAX_LINE_CHARACTERS = 1000
_warned: set[str] = set()


def write_stderr_line(text: str, *, apart: bool = False) -> bool:
    """Writes the first line of a text; returns False if the disk is full or the stream is closed or missing.

    `apart` writes a newline first, because another process may have left an unfinished line.
    """
    line = "\n" * apart + escape_controls(text.partition("\n")[0])[:_MAX_LINE_CHARACTERS]
    stream = sys.stderr
    if stream is None:
        return False
    try:
        stream.write(f"{line}\n")  # written at once, so that the lines of several ranks do not mix
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def warn_once(topic: str, text: str) -> None:
    """Writes a line that begins with "neurontools:", once per process and topic."""
    if topic not in _warned:
        _warned.add(topic)
        write_stderr_line(f"neurontools: {text}")
