"""The durable part of the log of what ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial

from neurond.journal.ended_record import from_line, to_line
from neurond.journal.line_file import CLOSE_SECONDS, MOST_FILE_BYTES, LineFile
from neurontools.model import EndedProcess

_NAME = "ended"
NAME, OLDER_NAME = f"{_NAME}.jsonl", f"{_NAME}.1.jsonl"


class EndedFile:
    """The log in one directory, as LineFile has it. `ended` is what it held when it was opened."""

    def __init__(self, path: str, group_id: int | None = None, most_file_bytes: int = MOST_FILE_BYTES) -> None:
        self._lines = LineFile(path, _NAME, "what ended", group_id, most_file_bytes)
        self.ended = [*_processes(self._lines.content)]
        self._lines.content = b""

    def add(self, process: EndedProcess) -> None:
        """Has it written."""
        self._lines.add(partial(to_line, process))

    def close(self, wait_seconds: float = CLOSE_SECONDS) -> None:
        """Writes what waits, and closes the files."""
        self._lines.close(wait_seconds)


def _processes(content: bytes) -> Iterable[EndedProcess]:
    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            yield from_line(line)
