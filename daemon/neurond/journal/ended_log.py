"""The log of what ended: the latest processes, in memory and, where there is a state directory, in its files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from neurond.journal.ended_file import EndedFile
from neurontools.model import EndedProcess

MOST_ENDED = 1000
RECENT_SECONDS = 60.0
MOST_RECENT = 128


class EndedLog:
    """The latest MOST_ENDED processes, oldest first; nothing is known of the time before `known_since_unix_seconds`."""

    def __init__(self, known_since_unix_seconds: float, file: EndedFile | None = None) -> None:
        self.known_since_unix_seconds = known_since_unix_seconds
        self._ended: deque[EndedProcess] = deque(maxlen=MOST_ENDED)
        self._file = file
        if file is not None and file.ended:
            self._ended.extend(sorted(file.ended, key=lambda process: process.ended_at_unix_seconds))
            self.known_since_unix_seconds = min(known_since_unix_seconds, self._ended[0].began_at_unix_seconds)

    def add(self, ended: Iterable[EndedProcess]) -> None:
        """Adds some that have just ended."""
        for process in ended:
            if len(self._ended) == MOST_ENDED:
                self.known_since_unix_seconds = self._ended[0].ended_at_unix_seconds
            self._ended.append(process)
            if self._file is not None:
                self._file.add(process)

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._file is not None:
            self._file.close()

    def since(self, unix_seconds: float) -> list[EndedProcess]:
        """Those that ended at this time or later, oldest first."""
        return [process for process in self._ended if process.ended_at_unix_seconds >= unix_seconds]

    def recent(self, now_unix_seconds: float) -> tuple[EndedProcess, ...]:
        """What a snapshot shows: the latest MOST_RECENT of the last RECENT_SECONDS."""
        last = self._ended[-1] if self._ended else None
        if last is None or last.ended_at_unix_seconds < now_unix_seconds - RECENT_SECONDS:
            return ()
        return tuple(self.since(now_unix_seconds - RECENT_SECONDS)[-MOST_RECENT:])
