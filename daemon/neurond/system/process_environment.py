"""Files of /proc/PID, of which other users may write what is in them: bounded, and nothing where they can't be read."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

MAX_ENVIRONMENT_BYTES = 512 * 2**10


def content(path: Path, most_bytes: int) -> bytes:
    """What a file holds, up to so many bytes; nothing where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def environment(directory: Path, names: Container[bytes]) -> dict[bytes, bytes]:
    """These variables of the process with this /proc/PID directory, as far as they are there."""
    entries = content(directory / "environ", MAX_ENVIRONMENT_BYTES).split(b"\0")
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name in names}
