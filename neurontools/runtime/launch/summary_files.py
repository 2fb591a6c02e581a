"""The files in which workers keep neuron-run informed: a JSON document a process, replaced once a second."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from neurontools.util.directory import Directory

DIRECTORY = "NEURONTOOLS_SUMMARY_DIRECTORY"
INTERVAL_SECONDS = 1.0


class SummaryFile:
    """Writes what `document` gives, unless it is None, to a file until the process ends, from a thread of its own.

    A process that is killed has left its state of a second before. A full disk loses the file and nothing else; a
    forked child writes nothing.
    """

    def __init__(self, directory: Path, document: Callable[[], dict[str, Any] | None]) -> None:
        self._document = document
        self._owner = os.getpid()
        self._directory = directory
        self._turn = Lock()
        self._ended = Event()
        self._is_there = False

    def start(self) -> None:
        """Begins to write; where the system refuses a thread, the file is written at the end alone."""
        import multiprocessing.util  # late: neuron-run itself reads DIRECTORY alone

        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:  # its workers end without what atexit has
            multiprocessing.util.Finalize(None, self._end, exitpriority=0)
        try:
            Thread(target=self._run, name="neurontools-summary", daemon=True).start()
        except RuntimeError:
            return

    def _run(self) -> None:
        self._write(has_ended=False)
        while not self._ended.wait(INTERVAL_SECONDS):
            self._write(has_ended=False)

    def _end(self) -> None:
        if os.getpid() == self._owner and not self._ended.is_set():
            self._ended.set()
            self._write(has_ended=True)

    def _write(self, *, has_ended: bool) -> None:
        with self._turn:
            if self._ended.is_set() and not has_ended:
                return
            try:
                document = self._document()
                name = f"{self._owner}.json"
                if document is None:
                    if self._is_there:  # from before this process gave its work to others
                        with Directory.open(self._directory) as directory:
                            directory.remove(name)
                        self._is_there = False
                    return
                document |= {"has_ended": has_ended, "failure": _failure() if has_ended else None}
                with Directory.open(self._directory) as directory:
                    directory.replace(name, json.dumps(document).encode(), 0o600)
                self._is_there = True
            except Exception:  # whatever it is, training goes on; the next second brings another try
                return


def _failure() -> str | None:
    """The exception that ends this process; None when it ends well, or with sys.exit."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return None
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
