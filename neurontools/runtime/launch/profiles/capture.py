"""A profile of this process while it runs, for somebody outside who asked for it.

It begins right after something was executed, when no graph has been recorded half without being looked at, and goes
over a socket to who asked, who writes it where he may. A thread does that; the training waits for nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from threading import Event, Lock, Thread

from neurontools.profile.stream import ProfileStream
from neurontools.rpc.profile_words import ASKED, failure_of
from neurontools.runtime.capture.following import following
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.profiling.recorder import Recorder
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.reporting.capture_requests import CaptureRequest
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.core import Core
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.worker import worker

_LONGEST_WAIT_SECONDS = 60.0  # for something to be executed
_LOOK_SECONDS = 0.25
_SEND_SECONDS = 30.0
_END_SECONDS = 5.0  # that a process which ends waits for its profile
_LOCK_SECONDS = 0.02


class Captures:
    """Takes one profile at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: _Capture | None = None

    def take(self, request: CaptureRequest) -> None:
        """Begins one in a thread, or tells who asked why not."""
        channel = request.channel
        with self._lock:
            capture = None
            if self._running is not None:
                _refuse(channel, "a profile of it is being taken already; try again when that is done")
            elif not device.taken:
                _refuse(channel, "it is only beginning and has no NeuronCores yet; try again")
            else:
                self._running = capture = _Capture(request, self._done)
        if capture is not None and not capture.start():
            self._done()
            _refuse(channel, "the system refuses it one more thread; end some")

    def end(self) -> None:
        """The process ends: what there is of a profile is sent."""
        running = self._running
        if running is not None:
            running.end()

    def forget_in_child(self) -> None:
        """In a forked child: the profile is the parent's, and who waits for it must see its end."""
        running, self._running = self._running, None
        self._lock = Lock()
        if running is not None:
            running.channel.close()

    def _done(self) -> None:
        self._running = None


class _Capture:
    """One of them."""

    def __init__(self, request: CaptureRequest, on_done: Callable[[], None]) -> None:
        self.channel = request.channel
        self._seconds = request.wanted.seconds
        self._steps = request.wanted.steps
        self._on_done = on_done
        self._begun = Event()
        self._enough = Event()
        self._is_ending = False
        self._stream: ProfileStream | None = None
        self._recorder: Recorder | None = None
        self._first_step = 0
        self._thread = Thread(target=self._run, name="neurontools-capture", daemon=True)

    def start(self) -> bool:
        """Begins; False where the system refuses a thread."""
        try:
            self._thread.start()
        except RuntimeError:
            return False
        return True

    def end(self) -> None:
        """Has it end now, and waits a moment until it is sent."""
        self._is_ending = True
        self._enough.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            with self.channel:
                self.channel.settimeout(_SEND_SECONDS)
                self.channel.sendall(ASKED + b"\n")
                if not self._begins():
                    told = f"nothing was executed for {_LONGEST_WAIT_SECONDS:.0f} s; look at what its script waits for"
                    _refuse(self.channel, "it ended before anything was executed" if self._is_ending else told)
                    return
                self._follow()
        except OSError:  # who asked is gone, or reads nothing
            return
        finally:
            self._leave()
            self._on_done()

    def _begins(self) -> bool:
        """Begins when something has been executed, or at once where nothing waits to be; False: it never was."""
        ring.is_eager = device.eager
        ring.watch(steps.steps_total)
        ring.at_steps.append(self._at_step)
        ring.at_flushes.append(self._at_flush)
        if buffers.lock.acquire(timeout=_LOCK_SECONDS):
            try:
                self._begin(is_at_step=False)
            finally:
                buffers.lock.release()
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self._begun.wait(_LOOK_SECONDS) and not self._enough.is_set() and time.monotonic() < deadline:
            if self._is_nobody_there():
                break
        return self._begun.is_set()

    def _at_step(self, step: int) -> None:
        """A step begins, in the thread of the script."""
        if self._recorder is None:
            self._begin(is_at_step=True)
        elif self._steps is not None and step >= self._first_step + self._steps:
            self._enough.set()

    def _at_flush(self) -> None:
        self._begin(is_at_step=False)

    def _begin(self, *, is_at_step: bool) -> None:
        """Begins, unless a graph is half recorded; where no step begins with it, whole ones do with the next."""
        with buffers.lock:
            if self._recorder is not None or any(map(_has_pending, device.taken)):
                return
            self._stream = ProfileStream(worker.metadata())
            self._recorder = Recorder(ring, self._stream, worker.living, worker.peaks)
            self._first_step = ring.step if is_at_step else ring.step + 1
            self._recorder.start(is_at_step=is_at_step)
        self._begun.set()

    def _follow(self) -> None:
        """Sends what comes, until the time is over, the steps are done, or the process ends."""
        recorder, stream = self._recorder, self._stream
        if recorder is None or stream is None:
            return
        deadline = time.monotonic() + self._seconds
        while not self._enough.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
            self._send(stream)
            if self._is_nobody_there() or recorder.failure is not None or time.monotonic() >= deadline:
                break
        recorder.finish()
        self._send(stream)
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def _send(self, stream: ProfileStream) -> None:
        data = stream.take()
        if data:
            self.channel.sendall(data)

    def _leave(self) -> None:
        """Nothing of it stays in the way of the training."""
        if self._at_step in ring.at_steps:
            ring.at_steps.remove(self._at_step)
            ring.at_flushes.remove(self._at_flush)
        if self._recorder is not None:
            self._recorder.abandon()
        ring.unwatch()

    def _is_nobody_there(self) -> bool:
        """Whether who asked has gone, who says nothing else on the channel."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(0))


def _has_pending(core: Core) -> bool:
    return bool(core.pending.signatures) or following.is_under_way(core)


def _refuse(channel: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError), channel:
        channel.settimeout(_LOCK_SECONDS)
        channel.sendall(failure_of(why))


captures = Captures()
atexit.register(captures.end)
os.register_at_fork(after_in_child=captures.forget_in_child)
