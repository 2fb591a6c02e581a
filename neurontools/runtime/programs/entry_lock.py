"""The lock of an entry of the compile cache: one rank compiles, the others wait and then find what it made."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from time import monotonic, sleep

from neurontools.util.directory import Directory

LONGEST_WAIT_SECONDS = 120.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.1
_TELL_AFTER_SECONDS, _TELL_AGAIN_SECONDS = 0.2, 60.0

_held: set[int] = set()


@contextlib.contextmanager
def held(
    directory: Directory,
    name: str,
    waiting: Callable[[float], None],
    longest_wait_seconds: float = LONGEST_WAIT_SECONDS,
) -> Iterator[bool]:
    """Holds the lock of a file, which is made; gives whether it is held.

    The kernel frees it when its holder ends, SIGKILL included, so a file that was left behind means nothing. It is not
    held where the file can't be made, and after `longest_wait_seconds`: a stopped process must not stop the others.
    `waiting` is told how many seconds have gone by, early and then once a minute.
    """
    descriptor = -1
    try:
        descriptor = directory.open_lock(name)
        _held.add(descriptor)
        is_held = _acquire(descriptor, waiting, longest_wait_seconds)
    except OSError:
        is_held = False
    except BaseException:
        _close(descriptor)
        raise
    try:
        yield is_held
    finally:
        _close(descriptor)


def _acquire(descriptor: int, waiting: Callable[[float], None], longest_wait_seconds: float) -> bool:
    began = monotonic()
    pause_seconds, tell_seconds = _FIRST_PAUSE_SECONDS, _TELL_AFTER_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_seconds = monotonic() - began
        else:
            return True
        if waited_seconds >= tell_seconds:
            tell_seconds = waited_seconds + _TELL_AGAIN_SECONDS
            waiting(waited_seconds)
        if waited_seconds >= longest_wait_seconds:
            return False
        sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _close(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


def _close_in_child() -> None:
    """A forked child's copy would keep the lock for as long as the child lives."""
    for descriptor in tuple(_held):
        _close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)
