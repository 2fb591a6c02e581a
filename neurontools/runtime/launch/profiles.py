"""Profiles of this process that environment variables request, and captures that clients request at run time.

A capture starts when no graph is partly recorded, for example after an execution. A thread streams the profile to the
client over a socket. The client writes the file, so neither side has to trust a path of the other. The training never
waits for this thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Event, Lock, Thread

from neurontools.driver.neuron_runtime import InvalidProfileSteps
from neurontools.profile.chunks import SUFFIX
from neurontools.profile.writer import ProfileStream, ProfileWriter
from neurontools.rpc.profile_protocol import ACCEPTED, ProfileOptions, encode_failure
from neurontools.runtime.capture.replay import replayer
from neurontools.runtime.counting.steps import step_clock, steps
from neurontools.runtime.profiling.recorder import ProfileConfig, ProfileRecorder
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.runtime.tensors.buffers import buffers
from neurontools.runtime.tensors.device import device, worker
from neurontools.util.errors import UserError
from neurontools.util.units import iec_bytes_text

_LONGEST_WAIT_SECONDS = 60.0  # longest wait for an execution, before which no capture can start
_POLL_SECONDS = 0.25
_SEND_SECONDS = 30.0
_END_SECONDS = 5.0  # time that an ending process waits until its profile is sent
_LOCK_SECONDS = 0.02


class ProfileCaptures:
    """Runs the captures that clients request, one at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: _Capture | None = None

    def start_capture(self, options: ProfileOptions, channel: socket.socket) -> None:
        """Starts a capture in a thread. If that is impossible, sends the client the reason."""
        with self._lock:
            capture = None
            if self._running is not None:
                _send_refusal(channel, "another profile of it is running; try again when that has ended")
            elif not device.acquired_cores:
                _send_refusal(channel, "it has just started and has no NeuronCores yet; try again")
            else:
                self._running = capture = _Capture(options, channel, self._done)
        if capture is not None:
            try:
                capture.thread.start()
            except RuntimeError:
                self._done()
                _send_refusal(channel, "the system refuses it another thread; end other processes")

    def end(self) -> None:
        """Ends the running capture and sends the rest of its profile. Runs when the process ends."""
        running = self._running
        if running is not None:
            running.end()

    def forget_in_child(self) -> None:
        """Closes a forked child's copy of the client's socket, which would keep end-of-file from the client."""
        running, self._running = self._running, None
        self._lock = Lock()
        if running is not None:
            running.channel.close()

    def _done(self) -> None:
        self._running = None


class _Capture:
    def __init__(self, options: ProfileOptions, channel: socket.socket, on_done: Callable[[], None]) -> None:
        self.channel = channel
        self._seconds = options.seconds
        self._steps = options.steps
        self._on_done = on_done
        self._begun = Event()
        self._enough = Event()
        self._is_ending = False
        self._stream: ProfileStream | None = None
        self._recorder: ProfileRecorder | None = None
        self._first_step = 0
        self.thread = Thread(target=self._run, name="neurontools-capture", daemon=True)

    def end(self) -> None:
        """Ends the capture and waits at most 5 s until the profile is sent."""
        self._is_ending = True
        self._enough.set()
        self.thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            with self.channel:
                self.channel.settimeout(_SEND_SECONDS)
                self.channel.sendall(ACCEPTED + b"\n")
                if not self._wait_for_begin():
                    idle = f"nothing was executed for {_LONGEST_WAIT_SECONDS:.0f} s; look at what its script waits for"
                    _send_refusal(self.channel, "it ended before anything was executed" if self._is_ending else idle)
                    return
                self._follow()
        except OSError:  # the client has disconnected, or does not read
            return
        finally:
            self._leave()
            self._on_done()

    def _wait_for_begin(self) -> bool:
        """Waits until the recording has begun. If a graph is pending, it begins after the next execution.

        Returns False if nothing is executed within 60 s, if the client disconnects, or if the process ends.
        """
        ring.is_eager = device.eager
        ring.watch(steps.steps_total)
        ring.step_hooks.append(self._at_step)
        ring.flush_hooks.append(self._at_flush)
        if buffers.lock.acquire(timeout=_LOCK_SECONDS):
            try:
                self._begin(is_at_step=False)
            finally:
                buffers.lock.release()
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self._begun.wait(_POLL_SECONDS) and not self._enough.is_set() and time.monotonic() < deadline:
            if self._is_client_gone():
                break
        return self._begun.is_set()

    def _at_step(self, step: int) -> None:
        """The step hook. It runs in the script's thread when a step begins."""
        if self._recorder is None:
            self._begin(is_at_step=True)
        elif self._steps is not None and step >= self._first_step + self._steps:
            self._enough.set()

    def _at_flush(self) -> None:
        self._begin(is_at_step=False)

    def _begin(self, *, is_at_step: bool) -> None:
        """Begins to record, unless a graph is partly recorded. The capture counts only complete steps."""
        with buffers.lock:
            if self._recorder is not None or any(
                core.pending.signatures or replayer.is_replaying(core) for core in device.acquired_cores
            ):
                return
            self._stream = ProfileStream(worker.metadata())
            self._recorder = ProfileRecorder(ring, self._stream, worker.live_blocks, worker.peaks)
            self._first_step = ring.step if is_at_step else ring.step + 1
            self._recorder.start(is_at_step=is_at_step)
        self._begun.set()

    def _follow(self) -> None:
        """Sends the profile while it grows, until the requested seconds or steps have passed or the process ends."""
        recorder, stream = self._recorder, self._stream
        if recorder is None or stream is None:
            return
        deadline = time.monotonic() + self._seconds
        while not self._enough.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
            self._send(stream)
            if self._is_client_gone() or recorder.failure is not None or time.monotonic() >= deadline:
                break
        recorder.finish()
        self._send(stream)
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def _send(self, stream: ProfileStream) -> None:
        data = stream.drain_pending()
        if data:
            self.channel.sendall(data)

    def _leave(self) -> None:
        if self._at_step in ring.step_hooks:
            ring.step_hooks.remove(self._at_step)
            ring.flush_hooks.remove(self._at_flush)
        if self._recorder is not None:
            self._recorder.abandon()
        ring.unwatch()

    def _is_client_gone(self) -> bool:
        """Returns whether the client has closed the socket. Clients send no data, so any input is end-of-file."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(0))


def _send_refusal(channel: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError), channel:
        channel.settimeout(_LOCK_SECONDS)
        channel.sendall(encode_failure(reason))


captures = ProfileCaptures()
atexit.register(captures.end)
os.register_at_fork(after_in_child=captures.forget_in_child)


class ProfileSession:
    """A profile that this process writes into a directory. Methods print failures to standard error and never raise."""

    def __init__(self, wanted: ProfileConfig) -> None:
        self._wanted = wanted
        self._writer: ProfileWriter | None = None
        self._recorder: ProfileRecorder | None = None
        self._closed: tuple[ProfileRecorder, ProfileWriter] | None = None
        self._path = Path()
        self._owner = os.getpid()
        self._is_over = False

    def begin(self) -> None:
        """Starts the profile immediately, or at the first step of the configured range."""
        ring.watch(steps.steps_total)
        ring.step_hooks.append(self._step_begins)
        atexit.register(self.finish)
        Finalize(None, self.finish, exitpriority=100)  # multiprocessing workers do not run atexit functions
        if self._wanted.first_step <= ring.step:
            self._start()

    def finish(self) -> None:
        """Ends the profile, if it has begun, and writes the files for viewers. Runs when the process ends."""
        if os.getpid() != self._owner:  # a forked child
            return
        self._is_over = True
        self._close()
        if self._closed is None:
            return
        from neurontools.profile import read_profile
        from neurontools.profile.formats.outputs import write_outputs

        (recorder, writer), self._closed = self._closed, None
        recorded, dropped = recorder.totals.recorded, sum(writer.dropped.values())
        lost = f", the oldest {dropped} of its events dropped" if dropped else ""
        counts = f"{recorded.get('steps', 0)} steps, {recorded.get('executions', 0)} executions"
        _print_line(f"{self._path}: {counts}, {iec_bytes_text(writer.size_bytes)}{lost}")
        try:
            write_outputs(read_profile(self._path), self._path.parent, self._wanted.run)
        except (OSError, UserError) as error:
            cause = error.strerror if isinstance(error, OSError) else str(error)
            _print_line(f"no files for viewers: {self._path.parent}: {cause}; neuron-profile shows {self._path}")

    def _close(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None or self._writer is None:
            return
        self._is_over = True
        error = getattr(sys, "last_value", None)
        recorder.finish(None if error is None else type(error).__name__)
        self._writer.close()
        if recorder.failure is not None:
            _print_line(f"incomplete: {self._path}: {recorder.failure.strerror}; free space, or give another directory")
        else:
            self._closed = recorder, self._writer

    def discard(self) -> None:
        """Ends the profile and deletes its file."""
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
        from neurontools.profile.formats.outputs import worker_name

        metadata = worker.metadata()
        directory = self._wanted.directory
        self._path = directory / f"{worker_name(metadata)}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._writer = ProfileWriter(self._path, metadata, self._wanted.most_event_bytes)
        except OSError as error:
            self._is_over = True
            where = error.filename or directory
            _print_line(f"not written: {where}: {error.strerror}; give a writable directory")
            return
        self._recorder = ProfileRecorder(ring, self._writer, worker.live_blocks, worker.peaks)
        with buffers.lock:
            self._recorder.start()


_sessions: list[ProfileSession] = []


def discard_profiles() -> None:
    """Discards the profiles of this process before it gives its cores to workers, which write their own profiles."""
    while _sessions:
        _sessions.pop().discard()


def begin_requested_profile(environment: Mapping[str, str]) -> None:
    """Starts the profile that environment variables request, if any. Call it when the process has its cores."""
    try:
        wanted = ProfileConfig.from_environment(environment)
    except InvalidProfileSteps as error:
        _print_line(f"not written: {error}")
        return
    if wanted is not None:
        ring.is_eager = device.eager
        _sessions.append(ProfileSession(wanted))
        _sessions[-1].begin()


def connect_ring() -> None:
    """Connects the profile ring to the step clock, and makes the start of a profile drop all traces. Call it once."""
    ring.start_hooks.append(replayer.drop_all_traces)
    ring.clock = _parts_ns


def _parts_ns() -> tuple[int, ...]:
    """Returns the current perf_counter time and the time that the step clock charged to each part, in ns."""
    at_seconds, parts = step_clock.read_charges()
    return tuple(round(each * 1e9) for each in (at_seconds, *parts))


def _print_line(text: str) -> None:
    write_stderr_line(f"neurontools: profile: {text}")
