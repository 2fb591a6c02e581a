"""Runs functions at the end of this process: at its normal end, at SIGTERM or SIGHUP, and before `os._exit`.

Python runs `atexit` functions neither for these signals nor for workers of multiprocessing, which end by `os._exit`. A
training would then lose its work since its last report.

The main thread may be inside of a long native call, and Python would run a signal handler only after it. So a thread
waits for the signals: CPython writes their numbers to its pipe at once (`signal.set_wakeup_fd`). It runs the functions
and then ends the process by the same signal. A signal that the script handles, or ignores, is left to the script.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

from neurontools.util.signals import defer_signals_here, never_raising_handlers

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LONGEST_SECONDS = 5.0  # for which the main thread waits in a signal handler; then it goes on until the process ends
# A signal waits until the main thread has stopped. If the main thread is inside a native call, the wait has two limits:
# the CPU time of the main thread, and that of all threads. On a busy host, clock time says little.
_MAIN_CPU_SECONDS, _ALL_CPU_SECONDS = 1.0, 3.0
_BLOCKED_SECONDS = 0.3  # the wait also ends if no other thread could run for this time
_LOOK_SECONDS = 0.02
_LOCKED_SECONDS = 1.0  # a main thread that holds a lock waits so long, then runs the functions itself
_LOCK_SECONDS = 3.0
_JOIN_SECONDS = 0.1

_functions: list[Callable[[], None]] = []
_running = threading.RLock()  # held while the functions run
_locks: list[threading.RLock] = []


def at_process_end(function: Callable[[], None]) -> None:
    """Calls a function once when this process ends, the latest one first. A forked child calls none of them.

    Signals are only handled if the first call is in the main thread.
    """
    if not _functions:
        atexit.register(run_functions)
        # Only a process that multiprocessing started has a parent process in this sense.
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, run_functions, exitpriority=0)
        _handler.install()
    _functions.append(function)


def hold_at_process_end(lock: threading.RLock) -> None:
    """Lets the functions run under this lock, so that no thread counts meanwhile. They may acquire it too.

    A signal does not stop the main thread while it holds the lock, because the functions would wait for it.
    """
    _locks.append(lock)


def forget_function(function: Callable[[], None]) -> None:
    """Removes a function; ignores one that is unknown."""
    with suppress(ValueError):
        _functions.remove(function)
    if not _functions:
        atexit.unregister(run_functions)
        _handler.uninstall()


def run_functions() -> None:
    """Calls the functions now, and not again. Ignores their errors. From now on, the signals end the process.

    A Ctrl-C meanwhile is dropped: the process ends anyway, and without its final report the work would be lost.
    """
    deferred = defer_signals_here()
    with _running:
        _handler.is_ending = deferred is not None
        while _functions:
            with suppress(Exception):
                _functions.pop()()
    if deferred is not None:
        deferred.drop()
    _handler.uninstall()


def run_before_immediate_exit() -> None:
    """Replaces `os._exit` by a function that calls the functions first. Call it once per process."""
    immediate_exit = os._exit

    def _exit(status: int) -> None:
        run_functions()
        immediate_exit(status)

    os._exit = _exit  # type: ignore[assignment]


class _SignalHandler:
    """The handler of the signals, and the thread that ends the process. Belongs to the main thread."""

    def __init__(self) -> None:
        self.is_ending = False  # whether the main thread runs the functions
        self._pipe: tuple[int, int] | None = None
        self._has_stopped = threading.Event()  # set when the main thread waits for the functions
        self._received_at_seconds: float | None = None  # when the main thread handled the first signal
        self._is_postponed = False  # whether the main thread held a lock at the latest signal
        self._thread = threading.Thread()

    def install(self) -> None:
        """Handles each signal whose action is the default one. Does nothing outside of the main thread."""
        if self._pipe is not None or threading.current_thread() is not threading.main_thread():
            return
        free = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        if not free:
            return
        self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe[1], False)
        self._thread = threading.Thread(target=self._wait, args=self._pipe, name="neurontools-signals", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system refuses a thread
            self._close_pipe()
            return
        never_raising_handlers.add(self._handle)
        for number in free:
            signal.signal(number, self._handle)
        self._set_wakeup(-1, self._pipe[1])

    def uninstall(self) -> None:
        """Restores the default action. Outside of the main thread, the handler stays."""
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        self._set_wakeup(self._pipe[1], -1)
        self._close_pipe()
        self._thread.join(_JOIN_SECONDS)
        self.is_ending = False

    def before_fork(self) -> None:
        """Takes the pipe from CPython for the time of the fork: the child has the same pipe, and gets signals too."""
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            self._set_wakeup(self._pipe[1], -1)

    def after_fork_in_parent(self) -> None:
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            self._set_wakeup(-1, self._pipe[1])

    def after_fork_in_child(self) -> None:
        """Restores the default action in a forked child, which has no such thread."""
        if self._pipe is not None:
            os.close(self._pipe[0])
        self.uninstall()

    @staticmethod
    def _set_wakeup(expected: int, descriptor: int) -> None:
        """Sets CPython's descriptor, unless an event loop has set another; then `_handle` alone wakes the thread."""
        before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        if before != expected:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe[1])  # the thread then closes the other end
            self._pipe = None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Wakes the thread and waits for it, so that the training stops here. The main thread may hold locks."""
        if self._pipe is not None:
            with suppress(BlockingIOError):
                os.write(self._pipe[1], bytes((number,)))
            if not self.is_ending and (not _holds_a_lock() or self._run_in_main_thread()):
                self._has_stopped.set()
                time.sleep(_LONGEST_SECONDS)

    def _run_in_main_thread(self) -> bool:
        """Runs the functions if the main thread holds a lock for long, as in a hanging execution. Else returns False.

        The other thread then sends the signal again.
        """
        now_seconds = time.monotonic()
        if self._received_at_seconds is None:
            self._received_at_seconds = now_seconds
        if now_seconds - self._received_at_seconds > _LOCKED_SECONDS and _running.acquire(blocking=False):
            try:
                run_functions()
            finally:
                _running.release()
            return True
        self._is_postponed = True
        return False

    def _wait(self, readable: int, _writable: int) -> None:
        while received := os.read(readable, 64):
            for number in received:
                if number in _SIGNALS and signal.getsignal(number) == self._handle:
                    if not self.is_ending:
                        self._wait_for_main_thread(number)  # else one function would count less work than the next
                    with ExitStack() as held:
                        for lock in _locks if _functions else ():
                            if lock.acquire(timeout=_LOCK_SECONDS):
                                held.callback(lock.release)
                        run_functions()
                    _end_by(number)
        os.close(readable)

    def _wait_for_main_thread(self, number: int) -> None:
        """Waits until the main thread has stopped, is in a long native call, or is blocked."""
        thread = threading.main_thread()
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        able_seconds = time.monotonic()
        main_end_seconds = time.clock_gettime(clock) + _MAIN_CPU_SECONDS
        all_end_seconds = time.process_time() + _ALL_CPU_SECONDS
        while not self._has_stopped.wait(_LOOK_SECONDS):
            now_seconds = time.monotonic()
            if self._is_postponed:
                self._is_postponed, able_seconds = False, now_seconds
                signal.pthread_kill(thread.ident or 0, number)
            elif _can_another_thread_run():
                able_seconds = now_seconds
            is_busy = time.clock_gettime(clock) > main_end_seconds or time.process_time() > all_end_seconds
            if is_busy or now_seconds - able_seconds > _BLOCKED_SECONDS:
                return


def _holds_a_lock() -> bool:
    return any(lock._is_owned() for lock in _locks)  # type: ignore[attr-defined]  # noqa: SLF001


def _can_another_thread_run() -> bool:
    """Returns whether a thread of this process other than the calling one runs, or waits for a CPU."""
    own_name = str(threading.get_native_id())
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
            if state != b"S" and thread.name != own_name:
                return True
    return False


def _end_by(number: int) -> None:
    """Ends this process by a signal. Python can restore a signal's action only in the main thread, C in any."""
    try:
        import ctypes  # a slow import, which few processes need
    except ImportError:  # a process that has changed its user may be unable to read Python's files
        os._exit(128 + number)
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


_handler = _SignalHandler()


def _after_fork_in_child() -> None:
    global _running
    _running = threading.RLock()
    _functions.clear()
    _handler.after_fork_in_child()


os.register_at_fork(
    before=_handler.before_fork, after_in_parent=_handler.after_fork_in_parent, after_in_child=_after_fork_in_child
)
