"""Ctrl-C while torch asks for the device's guard is raised right afterwards, where torch can bear it.

torch's C++ looks for the Python function of the guard by the name of the running one, and takes that with PyObject_Str,
which carries out signals (CPython 3.11). KeyboardInterrupt raised there leaves a C++ function that may raise nothing,
and the process is aborted: a training of small steps met that with every tenth to twentieth Ctrl-C.

So the handler of Ctrl-C looks where it was called. In that place it has the signal come again, from a thread, when
torch has its answer; anywhere else, also in calls that block, it raises KeyboardInterrupt at once, as Python's own.

Not covered: handlers that a script has set itself, and that raise.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import signal
import threading
import time
from types import FrameType
from typing import Any

_MOST_FRAMES = 256
_AGAIN_AFTER_SECONDS = 0.001
_CALLER, _CALLED = b"libtorch_python", b"PyObject_Str"


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("file_address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _NativeStack:
    """The C functions that a Python function was called by. AttributeError where the C library can't tell."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._backtrace: Any = library.backtrace
        self._dladdr: Any = library.dladdr
        self._frames()  # the first call loads the unwinder

    def has_call(self, caller: bytes, called: bytes) -> bool:
        """Whether a function of the library `caller` has called the function `called`."""
        symbols = [self._symbol(address) for address in self._frames()]
        return any(
            inner.name == called and caller in (outer.file or b"") for inner, outer in itertools.pairwise(symbols)
        )

    def _frames(self) -> list[int | None]:
        addresses = (ctypes.c_void_p * _MOST_FRAMES)()  # one each time: another signal may come meanwhile
        return addresses[: self._backtrace(addresses, _MOST_FRAMES)]

    def _symbol(self, address: int | None) -> _Symbol:
        symbol = _Symbol()
        self._dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
        return symbol


def install() -> None:
    """Takes the place of Python's own handler of Ctrl-C, where that is in use; once a process, in its main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    try:
        stack = _NativeStack()
    except (AttributeError, OSError):
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        if stack.has_call(_CALLER, _CALLED):
            with contextlib.suppress(RuntimeError):  # there may be no more threads
                _thread.start_new_thread(_send_again, (number, threading.get_ident()))
                return
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupted)


def _send_again(number: int, thread: int) -> None:
    time.sleep(_AGAIN_AFTER_SECONDS)
    signal.pthread_kill(thread, number)
