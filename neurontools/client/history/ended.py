"""The processes that have ended, as far as a view has seen: from the moments of its timeline, and from the daemon."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import TYPE_CHECKING

from neurontools.model import EndedProcess
from neurontools.rpc.convert import from_message
from neurontools.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.client.history.timeline import Timeline

MOST_KEPT = 4000
# A snapshot shows what ended within the minute before it: of each such time one moment is enough.
_STEP_SECONDS = 25.0

_Key = tuple[int, float, float]


class EndedBook:
    """Everything that is known to have ended; for one thread."""

    def __init__(self) -> None:
        self._ended: dict[_Key, EndedProcess] = {}
        self._read: dict[int, float] = {}  # by step of the clock: the moment that was read

    def take(self, processes: Iterable[EndedProcess]) -> None:
        """Takes some in; those that are known already stay."""
        for process in processes:
            self._ended.setdefault(_key(process), process)
        for key in list(self._ended)[: max(0, len(self._ended) - MOST_KEPT)]:
            del self._ended[key]

    def read(self, timeline: Timeline) -> None:
        """Takes in what the moments of a timeline show that have not been read yet."""
        moments = timeline.moments
        position = 0
        while position < len(moments):
            step = int(moments[position].at_seconds // _STEP_SECONDS)
            end = bisect_right(moments, (step + 1) * _STEP_SECONDS, position, key=lambda moment: moment.at_seconds)
            last = moments[max(position, end - 1)]
            if self._read.get(step) != last.at_seconds:
                self._read[step] = last.at_seconds
                self.take(from_message(EndedProcess, ended) for ended in last.message().ended)
            position = max(position + 1, end)

    def until(self, unix_seconds: float) -> tuple[EndedProcess, ...]:
        """What had ended by then."""
        return tuple(process for process in self._ended.values() if process.ended_at_unix_seconds <= unix_seconds)


def _key(process: EndedProcess) -> _Key:
    return process.pid, process.began_at_unix_seconds, process.ended_at_unix_seconds


class EndedFetch:
    """Asks a daemon once what has ended, in a thread of its own; `take` hands it over when it is there."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._found: tuple[EndedProcess, ...] = ()
        self._thread = threading.Thread(target=self._run, name="ended", daemon=True)
        self._thread.start()

    def wait(self) -> tuple[EndedProcess, ...]:
        """As `take`, when the daemon has answered."""
        self._thread.join()
        return self.take()

    def take(self) -> tuple[EndedProcess, ...]:
        """What has come since this was last asked."""
        found, self._found = self._found, ()
        return found

    def _run(self) -> None:
        from neurontools.client.daemon_client import Client

        try:
            with Client(self._socket_path) as client:
                self._found = client.ended().processes
        except (UserError, ValueError):  # gone, or an older daemon, which knows of none
            return
