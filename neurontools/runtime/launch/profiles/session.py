"""The profile that the environment asks for: from the first NeuronCore to the end of the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping
from multiprocessing.util import Finalize
from pathlib import Path

from neurontools.driver.neuron_runtime import InvalidProfileSteps
from neurontools.profile import read_profile
from neurontools.profile.chunks import SUFFIX
from neurontools.profile.formats.outputs import worker_name, write_outputs
from neurontools.profile.writer import ProfileWriter
from neurontools.runtime.capture.following import following
from neurontools.runtime.counting.step_clock import step_clock
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.profiling.recorder import Recorder
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.profiling.wanted import Wanted
from neurontools.runtime.reporting.narration import say
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.worker import worker
from neurontools.util.errors import UserError
from neurontools.util.units import bytes_text


class Session:
    """A profile into a directory. Nothing of it raises: what fails is told in a line, and training goes on."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._writer: ProfileWriter | None = None
        self._recorder: Recorder | None = None
        self._closed: tuple[Recorder, ProfileWriter] | None = None
        self._path = Path()
        self._owner = os.getpid()
        self._is_over = False

    def begin(self) -> None:
        """Begins now, or when the first of the wanted steps does."""
        ring.watch(steps.steps_total)
        ring.at_steps.append(self._step_begins)
        atexit.register(self.finish)
        Finalize(None, self.finish, exitpriority=100)  # a worker that was forked ends without atexit
        if self._wanted.first_step <= ring.step:
            self._start()

    def finish(self) -> None:
        """At the end of the process: ends the profile, if it has begun, and writes the files of the viewers."""
        if os.getpid() != self._owner:  # a forked child
            return
        self._is_over = True
        self._close()
        if self._closed is None:
            return
        (recorder, writer), self._closed = self._closed, None
        recorded, dropped = recorder.totals.recorded, sum(writer.dropped.values())
        lost = f", the oldest {dropped} of its events dropped" if dropped else ""
        counts = f"{recorded.get('steps', 0)} steps, {recorded.get('executions', 0)} executions"
        _tell(f"{self._path}: {counts}, {bytes_text(writer.size_bytes)}{lost}")
        try:
            write_outputs(read_profile(self._path), self._path.parent, self._wanted.run)
        except (OSError, UserError) as error:
            cause = error.strerror if isinstance(error, OSError) else str(error)
            _tell(f"no files for viewers: {self._path.parent}: {cause}; neuron-profile shows {self._path}")

    def _close(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None or self._writer is None:
            return
        self._is_over = True
        recorder.finish(_failure())
        self._writer.close()
        if recorder.failure is not None:
            _tell(f"it ends here: {self._path}: {recorder.failure.strerror}; free space, or give another directory")
        else:
            self._closed = recorder, self._writer

    def give_up(self) -> None:
        """Ends it, and leaves nothing."""
        recorder, self._recorder = self._recorder, None
        self._is_over = True
        self._closed = None
        if recorder is not None and self._writer is not None:
            recorder.finish()
            self._writer.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _step_begins(self, step: int) -> None:
        if self._is_over:
            return
        if self._recorder is None:
            if step >= self._wanted.first_step:
                self._start()
        elif self._wanted.last_step is not None and step > self._wanted.last_step:
            self._close()

    def _start(self) -> None:
        metadata = worker.metadata()
        directory = self._wanted.directory
        self._path = directory / f"{worker_name(metadata)}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._writer = ProfileWriter(self._path, metadata, self._wanted.most_event_bytes)
        except OSError as error:
            self._is_over = True
            where = error.filename or directory
            _tell(f"none is made: {where}: {error.strerror}; give a directory that can be written")
            return
        self._recorder = Recorder(ring, self._writer, worker.living, worker.peaks)
        with buffers.lock:
            self._recorder.start()


_sessions: list[Session] = []


def give_up() -> None:
    """This process gives its cores to others, which have profiles of their own: there is none of it."""
    while _sessions:
        _sessions.pop().give_up()


def begin(environment: Mapping[str, str]) -> None:
    """Begins a profile where the environment asks for one; the process has its cores."""
    try:
        wanted = Wanted.from_environment(environment)
    except InvalidProfileSteps as error:
        _tell(f"none is made: {error}")
        return
    if wanted is not None:
        ring.is_eager = device.eager
        _sessions.append(Session(wanted))
        _sessions[-1].begin()


def install() -> None:
    """What the ring needs of the runtime; once a process."""
    ring.before_start.append(following.forget_all)
    ring.clock = _parts_ns


def _parts_ns() -> tuple[int, ...]:
    """The moment at which the step clock was read, and what it had charged by then to the parts of a step, ns."""
    at_seconds, parts = step_clock.at_boundary()
    return tuple(round(each * 1e9) for each in (at_seconds, *parts))


def _tell(text: str) -> None:
    say(f"neurontools: profile: {text}")


def _failure() -> str | None:
    error = getattr(sys, "last_value", None)
    return None if error is None else type(error).__name__
