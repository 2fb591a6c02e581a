"""Summary files, from which neuron-run reads the state of its workers.

Each worker replaces its file, a JSON document, once a second.
"""

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
    """Writes the result of `document` to a file once a second in its own thread, until the process ends.

    If the result is None, there is no file. If the process is killed, the file is at most a second old. An error, such
    as a full disk, does not stop the training. A forked child writes nothing.
    """

    def __init__(self, directory: Path, document: Callable[[], dict[str, Any] | None]) -> None:
        self._document = document
        self._pid = os.getpid()
        self._directory = directory
        self._write_lock = Lock()
        self._ended = Event()
        self._is_there = False

    def start(self) -> None:
        """Starts the thread. If the system refuses a thread, the file is written only when the process ends."""
        import multiprocessing.util  # imported late, because most importers of this module need only DIRECTORY

        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:  # multiprocessing workers skip atexit functions
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
        if os.getpid() == self._pid and not self._ended.is_set():
            self._ended.set()
            self._write(has_ended=True)

    def _write(self, *, has_ended: bool) -> None:
        with self._write_lock:
            if self._ended.is_set() and not has_ended:
                return
            try:
                document = self._document()
                name = f"{self._pid}.json"
                if document is None:
                    if self._is_there:  # the file is outdated: this process gave its cores to workers
                        with Directory.open(self._directory) as directory:
                            directory.remove(name)
                        self._is_there = False
                    return
                document |= {"has_ended": has_ended, "failure": _failure() if has_ended else None}
                with Directory.open(self._directory) as directory:
                    directory.replace(name, json.dumps(document).encode(), 0o600)
                self._is_there = True
            except Exception:  # no error may stop the training; the next second tries again
                return


def _failure() -> str | None:
    """Returns the text of the exception that ends this process. None for a normal end or sys.exit."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return None
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
