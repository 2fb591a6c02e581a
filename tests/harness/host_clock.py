"""A host's clock that a test sets: for real processes, which are started with its environment."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness.paths import PYTHONPATH

_SET = """
import time

_time = time.time


def _set_time():
    with open({file!r}) as file:
        return _time() + float(file.read() or 0.0)


time.time = _set_time
"""


class HostClock:
    """What `time.time` answers in processes with `environment`; CLOCK_MONOTONIC is not touched, as on a host."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "seconds"
        self.set(0.0)
        (directory / "sitecustomize.py").write_text(_SET.format(file=str(self._file)), "utf-8")
        # With a variable that acts when an interpreter starts, none that has begun already is taken (python_process).
        self.environment = {"PYTHONPATH": os.pathsep.join((str(directory), PYTHONPATH)), "PYTHONHASHSEED": "0"}

    def set(self, seconds: float) -> None:
        """Sets it so far ahead of the real one, or behind it."""
        staged = self._file.with_name("staged")
        staged.write_text(f"{seconds}\n", "utf-8")
        staged.replace(self._file)
