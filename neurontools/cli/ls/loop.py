"""`neuron-ls --loop`: rows as they come, until somebody has seen enough.

Imported for it alone, so it may import more.
"""

from __future__ import annotations

import os
from time import sleep

from neurontools.cli.line import frame, intervals
from neurontools.cli.line.options import exclude_each_other
from neurontools.cli.line.telling import tell
from neurontools.cli.ls.scripts import ScriptQuery
from neurontools.client.daemon_client import Client
from neurontools.model import Snapshot
from neurontools.rpc.ask import NoDaemon, TimedOut
from neurontools.rpc.socket_path import display_address
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.terminal import terminal_size
from neurontools.views.ls_reports import loop_header, loop_rows
from neurontools.views.query_fields import streamed_query_text

_AGAIN_SECONDS = 0.25
_LONGEST_INTERVAL_OF_ITS_OWN_SECONDS = 1.0
_OF_THE_TABLE = ("wide", "show-all-procs", "topology", "json-output")
_HEADER_LINES = 3
_STDOUT = 1


class LoopQuery(ScriptQuery):
    """A question that is asked again and again; `answer` prints by itself until it has done so often enough.

    A daemon that goes away is waited for, without end: whoever looks at rows ends it himself.
    """

    def __init__(self, given: dict[str, str]) -> None:
        exclude_each_other(given, "loop", "wait-free", "health", "output-format")
        for name in _OF_THE_TABLE:
            if name in given:
                raise UserError(
                    f"--{name} is not for --loop; --query chooses what its rows say, --format json how", EXIT_USAGE
                )
        super().__init__(given)
        self._seconds = intervals.interval_seconds("--loop", given["loop"])
        self._times = intervals.count("--count", given.get("count"))
        self.interval_seconds = min(self._seconds, _LONGEST_INTERVAL_OF_ITS_OWN_SECONDS)
        self._done = 0
        self._lines_since_header: int | None = None
        self._chosen: tuple[int, ...] | None = None

    def answer(self, path: str) -> str:
        """Prints rows until `--count` is reached; NoDaemon or UserError where not even the first can be had."""
        is_lost = False
        with Client(path) as client:
            while True:
                try:
                    for snapshot in client.watch(self._seconds):
                        if is_lost:
                            is_lost = False
                            tell(f"neuron-ls: the monitor daemon at {display_address(path)} is back")
                        self._print(snapshot)
                        if self._done == self._times:
                            return ""
                    trouble = f"the monitor daemon at {display_address(path)} has ended"
                except (NoDaemon, TimedOut) as error:
                    if not self._done:
                        raise
                    trouble = str(error)
                if not is_lost:
                    is_lost = True
                    tell(f"neuron-ls: {trouble}; waiting until it is back")
                sleep(_AGAIN_SECONDS)

    def _print(self, snapshot: Snapshot) -> None:
        if self._chosen is None:
            self._chosen = self._device_indices(snapshot)
        rows = self._rows(snapshot, self._chosen)
        if self._fields:
            text = streamed_query_text(self._fields, rows, self._format, is_first=not self._done)
        else:
            text = loop_rows(rows)
            if self._wants_header(len(rows)):
                text = loop_header(snapshot) + text
        frame.write_text(text)
        self._done += 1

    def _wants_header(self, lines: int) -> bool:
        """At the beginning; on a terminal again whenever the last one would leave it."""
        before = self._lines_since_header
        if before is not None:
            before += lines
            height = terminal_size()[1] if os.isatty(_STDOUT) else None
            if height is None or before + _HEADER_LINES < height:
                self._lines_since_header = before
                return False
        self._lines_since_header = lines
        return True
