"""Interrupts and errors in places where PyTorch's C++ code can't raise them.

Ctrl-C: torch's C++ finds the Python function of the device guard with PyObject_Str, which runs signal handlers (CPython
3.11). A KeyboardInterrupt there leaves a noexcept C++ function and aborts the process. A training of small steps
aborted on every tenth to twentieth Ctrl-C. So the SIGINT handler inspects the native stack. If torch is in that
PyObject_Str call, the handler sends the signal again from a thread. Otherwise it raises KeyboardInterrupt immediately.
Other C code clears the error, and the training would go on: 8 of 122 interrupts of small steps were lost this way. So a
thread checks after one second whether the error has reached the interrupted frame. If it has not, the thread sends the
signal again. A SIGINT handler of the script itself has no such protection.

Errors in backward hooks: while torch unwinds after a hook raised, it asks the device guard for its type. That is a
Python call with a pending exception, which ends the process. So wrapped hooks of device tensors store their exception
and return a value that torch rejects; the stored exception then replaces torch's error. For the same reason, a Ctrl-C
during backward is raised after the pass. Hooks on a graph node (`tensor.grad_fn.register_hook`) have no such
protection.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import itertools
import signal
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils import hooks as module_hooks

from neurontools.util.signals import defer_signals_here

Hook = Callable[..., Any]
Tensor: Any = torch.Tensor


class _Running(threading.local):
    """Per thread: the number of nested backward passes, and the first exception of a hook in the innermost pass."""

    depth = 0
    error: BaseException | None = None


_running = _Running()


def guard_backward_hooks() -> None:
    """Patches backward hooks and the autograd engine, so that a hook may raise. Call once per process."""
    autograd: Any = torch.autograd
    graph: Any = autograd.graph
    autograd._engine_run_backward = graph._engine_run_backward = _guarded_run(graph._engine_run_backward)
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        setattr(Tensor, name, _registering(getattr(Tensor, name)))
    saved: Any = graph.saved_tensors_hooks
    make = saved.__init__

    @functools.wraps(make)
    def make_guarded(self: Any, pack_hook: Hook, unpack_hook: Hook) -> None:
        make(self, pack_hook, _guarded(unpack_hook, lambda _packed: None))

    saved.__init__ = make_guarded
    module: Any = module_hooks.BackwardHook
    apply = module._apply_on_tensors

    @functools.wraps(apply)
    def apply_guarded(self: Any, register: Callable[[Any], None], arguments: Any) -> Any:
        return apply(self, lambda node: register(_GuardedNode(node)), arguments)

    module._apply_on_tensors = apply_guarded


class _GuardedNode:
    def __init__(self, node: Any) -> None:
        self._node = node

    def register_hook(self, hook: Hook) -> Any:
        return self._node.register_hook(refusing_hook(hook))


def refusing_hook(hook: Hook) -> Hook:
    """Wraps a hook for an autograd node, so that the hook may raise."""
    return _guarded(hook, _refused_gradients)


def _guarded_run(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def run_guarded(*arguments: Any, **keywords: Any) -> Any:
        outer, _running.error = _running.error, None
        deferred = None if _running.depth else defer_signals_here()
        _running.depth += 1
        try:
            # Runs backward in this thread: a thread of the autograd engine would start another OpenMP pool, and could
            # use only NeuronCore 0.
            with torch.autograd.set_multithreading_enabled(False):
                return run(*arguments, **keywords)
        except (RuntimeError, TypeError):
            error = _running.error
            if error is None:
                raise
            raise error from error.__cause__
        finally:
            _running.depth -= 1
            _running.error = outer
            if deferred is not None:
                deferred.release()

    return run_guarded


def _registering(register: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(register)
    def register_guarded(self: Any, hook: Hook) -> Any:
        return register(self, hook if self.is_cpu else _guarded(hook, _refused_gradient))

    return register_guarded


def _guarded(hook: Hook, refused: Callable[..., Any]) -> Hook:
    """Wraps a hook. If it raises during backward, stores the exception and returns a value that torch rejects.

    `refused(*arguments)` creates that value.
    """

    def call(*arguments: Any) -> Any:
        try:
            return hook(*arguments)
        except BaseException as error:
            if not _running.depth:
                raise
            _running.error = _running.error or error
            return refused(*arguments)

    call.__name__ = getattr(hook, "__name__", type(hook).__name__)
    return call


def _refused_gradient(_gradient: Any) -> Any:
    """Returns a CPU bool tensor, which is not a valid gradient of any device tensor."""
    return torch.empty(0, dtype=torch.bool, device="cpu")


def _refused_gradients(gradients: Any, *_: Any) -> Any:
    """Returns one gradient too many, so that torch rejects the result."""
    return (None,) * (len(gradients) + 1)


_MOST_FRAMES = 256
_AGAIN_AFTER_SECONDS = 0.001
_LOST_AFTER_SECONDS = 1.0
_CALLER, _CALLED = b"libtorch_python", b"PyObject_Str"


class _Symbol(ctypes.Structure):
    """The C struct Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("file_address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _NativeStack:
    """Reads the native call stack. Raises AttributeError if the C library lacks backtrace or dladdr."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._backtrace: Any = library.backtrace
        self._dladdr: Any = library.dladdr
        self._frames()  # the first call is slow, because it loads the unwinder

    def has_call(self, caller: bytes, called: bytes) -> bool:
        """Returns whether the stack has a direct call of function `called` from a library named like `caller`."""
        symbols = []
        for address in self._frames():
            symbols.append(_Symbol())
            self._dladdr(ctypes.c_void_p(address), ctypes.byref(symbols[-1]))
        return any(
            inner.name == called and caller in (outer.file or b"") for inner, outer in itertools.pairwise(symbols)
        )

    def _frames(self) -> list[int | None]:
        addresses = (ctypes.c_void_p * _MOST_FRAMES)()  # not shared, because another signal may interrupt this call
        return addresses[: self._backtrace(addresses, _MOST_FRAMES)]


def resend_lost_interrupts() -> None:
    """Replaces Python's SIGINT handler in the main thread, unless the script has its own handler. Call once."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    try:
        stack = _NativeStack()
    except (AttributeError, OSError):
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        if stack.has_call(_CALLER, _CALLED):
            with contextlib.suppress(RuntimeError):  # the system may refuse another thread
                _thread.start_new_thread(_send_again, (number, threading.get_ident()))
                return
        error = KeyboardInterrupt()
        if frame is not None:
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_send_again_if_lost, (number, threading.get_ident(), error, frame))
        raise error

    signal.signal(signal.SIGINT, interrupted)


def _send_again_if_lost(number: int, thread: int, error: KeyboardInterrupt, frame: FrameType) -> None:
    """Sends the signal again if C code below the interrupted frame has cleared the error.

    Such an error never reaches the frame, so the frame is not in its traceback.
    """
    time.sleep(_LOST_AFTER_SECONDS)
    if all(reached is not frame for reached, _ in traceback.walk_tb(error.__traceback__)):
        signal.pthread_kill(thread, number)


def _send_again(number: int, thread: int) -> None:
    time.sleep(_AGAIN_AFTER_SECONDS)
    signal.pthread_kill(thread, number)
