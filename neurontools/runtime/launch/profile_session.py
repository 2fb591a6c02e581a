"""The profile that the environment asks for: from the first NeuronCore to the end of the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from neurontools.nrt.profile_steps import NoSteps
from neurontools.profile.chunks import SUFFIX
from neurontools.runtime.capture.following import following
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.profiling.file_taker import FileTaker
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.profiling.wanted import Wanted
from neurontools.runtime.reporting.narration import say
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.worker import worker
from neurontools.text.units import bytes_text


class Session:
    """A profile into a directory. Nothing of it raises: what fails is told in a line, and training goes on."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._taker: FileTaker | None = None
        self._path = Path()
        self._owner = os.getpid()
        self._is_over = False

    def begin(self) -> None:
        """Begins now, or when the first of the wanted steps does."""
        ring.watch(steps.steps_total)
        ring.at_steps.append(self._step_begins)
        atexit.register(self.finish)
        if self._wanted.first_step <= ring.step:
            self._start()

    def finish(self) -> None:
        """Ends the profile, if it has begun; may be called again, and does nothing in a forked child."""
        taker, self._taker = self._taker, None
        self._is_over = True
        if taker is None or os.getpid() != self._owner:
            return
        taker.finish(_failure())
        if taker.failure is not None:
            _tell(f"it ends here: {self._path}: {taker.failure.strerror}; free space, or give another directory")
            return
        recorded, dropped = taker.totals.recorded, sum(taker.dropped.values())
        lost = f", the oldest {dropped} of its events dropped" if dropped else ""
        counts = f"{recorded.get('steps', 0)} steps, {recorded.get('executions', 0)} executions"
        _tell(f"{self._path}: {counts}, {bytes_text(taker.size_bytes)}{lost}")

    def give_up(self) -> None:
        """Ends it, and leaves nothing."""
        taker, self._taker = self._taker, None
        self._is_over = True
        if taker is not None:
            taker.finish()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _step_begins(self, step: int) -> None:
        if self._is_over:
            return
        if self._taker is None:
            if step >= self._wanted.first_step:
                self._start()
        elif self._wanted.last_step is not None and step > self._wanted.last_step:
            self.finish()

    def _start(self) -> None:
        metadata = worker.metadata()
        directory = self._wanted.directory
        self._path = directory / f"{metadata.host}-rank{metadata.rank}-{metadata.pid}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            taker = FileTaker(ring, self._path, metadata, self._wanted.most_event_bytes, worker.living, worker.peaks)
        except OSError as error:
            self._is_over = True
            where = error.filename or directory
            _tell(f"none is made: {where}: {error.strerror}; give a directory that can be written")
            return
        self._taker = taker
        with buffers.lock:
            taker.start()


_sessions: list[Session] = []


def give_up() -> None:
    """This process gives its cores to others, which have profiles of their own: there is none of it."""
    while _sessions:
        _sessions.pop().give_up()


def begin(environment: Mapping[str, str]) -> None:
    """Begins a profile where the environment asks for one; the process has its cores."""
    try:
        wanted = Wanted.from_environment(environment)
    except NoSteps as error:
        _tell(f"none is made: {error}")
        return
    if wanted is not None:
        ring.is_eager = device.eager
        _sessions.append(Session(wanted))
        _sessions[-1].begin()


def install() -> None:
    """What the ring needs of the runtime; once a process."""
    ring.before_start.append(following.forget_all)


def _tell(text: str) -> None:
    say(f"neurontools: profile: {text}")


def _failure() -> str | None:
    error = getattr(sys, "last_value", None)
    return None if error is None else type(error).__name__
