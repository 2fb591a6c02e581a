"""An interpreter with modules imported, whose forks run what `python script.py`, `-m module` or `-c code` would run.

    python loaded_interpreter.py DESCRIPTOR module ...

A message at the socket of that descriptor is a process to start, with the files it is to have; the answer is its PID.
The process is a child of whoever asked, a reaper of orphans for that moment. It has arguments, variables, files,
directory, session and signals as after fork and exec, also in /proc, where the daemon and the orphan reaper
read them. Processes of this interpreter that it starts with `subprocess`, or executes in its place, are forks too:
importing torch is most of what a run of two ranks would cost. What can't be forked truthfully, as with flags of the
interpreter, is started for real (`can_be_forked`).

After the exit functions such a process ends at once: torch's libraries take a quarter of a second of CPU to destroy
their tables. A test that is about threads which are in them sets the variable WHOLE_END.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import inspect
import io
import json
import logging
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

MESSAGE_BYTES = 1 << 20
MOST_FILES = 64
WHOLE_END = "WHOLE_END"
_OPT_IN = ("TORCHELASTIC_RUN_ID", "NEURONTOOLS_RUNTIME")
_SETTLED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTEST_")
_paths = sys.path[1:]
_Popen = subprocess.Popen
_execv = os.execv
_loaded: frozenset[str] = frozenset()
_register = atexit.register
_at_exit: list[Any] = []
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_command_line_block: Any = None


def can_be_forked(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork of an interpreter that was started with our variables is what these would start."""
    rest = [argument for argument in arguments if argument != "-u"]
    if rest[:2] == ["-P", "-m"] and not rest[2].startswith("neurond"):  # a neurond has state that no other may inherit
        del rest[0]
    if not rest or (rest[0].startswith("-") and (rest[0] not in ("-m", "-c") or len(rest) < 2)):
        return False
    # Torch's autoload and our .pth file act while the interpreter and torch start.
    if any(name in environment for name in _OPT_IN) and rest[:2] != ["-m", "neurontools.runtime"]:
        return False
    return _of_interpreter(environment) == _of_interpreter(os.environ)


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that act when an interpreter starts."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")) and not name.startswith(_SETTLED)
    }


class ForkingPopen(_Popen[Any]):
    """Starts this interpreter by forking, and everything else as its base does."""

    def __init__(self, args: Any, *others: Any, **options: Any) -> None:
        self._process = None if others else requested_process(args, options)
        super().__init__(args, *others, **options)

    def _execute_child(self, *given: Any) -> None:
        if self._process is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        wanted = inspect.signature(_Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        files = {number: wanted[name] for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))}
        files = {number: number if descriptor == -1 else descriptor for number, descriptor in files.items()}
        self.pid = self._start(self._process, files | {number: number for number in wanted["pass_fds"]})
        self._child_created = True
        self._close_pipe_fds(*(wanted[name] for name in _PIPES))  # type: ignore[attr-defined]

    def _start(self, process: dict[str, Any], files: dict[int, int]) -> int:
        """The PID of a new process with these descriptors, each of which is one of ours."""
        sys.stdout.flush()
        sys.stderr.flush()
        ready, begun = os.pipe()  # `become` closes its end, as the end that Popen waits for is closed by exec
        with warnings.catch_warnings():  # Python 3.12 and later: the threads of torch's libraries wait for work
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            become(process, files, is_own_child=True)
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        return pid


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_OPTIONS = {"stdin", "stdout", "stderr", "pass_fds", "cwd", "env", "start_new_session", "bufsize", "text", "encoding"}
_FALSE_OPTIONS = {"shell", "universal_newlines"}  # asyncio passes them


def requested_process(command: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The process that Popen is asked for, for `become`; None when it has to be started for real."""
    options = {name: value for name, value in options.items() if value or name not in _FALSE_OPTIONS}
    if not isinstance(command, (list, tuple)) or not options.keys() <= _OPTIONS:
        return None
    given = options.get("env")
    environment = os.environ if given is None else given
    program, *arguments = map(os.fspath, command)
    if program != sys.executable or not can_be_forked(arguments, environment):
        return None
    return {
        "arguments": arguments,
        "environment": dict(environment),
        "directory": os.path.abspath(options.get("cwd") or os.getcwd()),  # noqa: PTH100, PTH109
        "new_session": bool(options.get("start_new_session")),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
    }


def become(process: dict[str, Any], files: dict[int, int], *, is_own_child: bool = False) -> NoReturn:
    """Makes this process, which was just forked, the one that was asked for; `files` are its descriptors and ours.

    `is_own_child`: it was forked in the midst of a process whose objects it must leave alone.
    """
    signal.set_wakeup_fd(-1)
    ignored = {*process["ignored"], signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if process["new_session"]:
        os.setsid()
    os.chdir(process["directory"])
    _install_files(files)
    if is_own_child:
        gc.freeze()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        atexit._clear()
        for function in (weakref.finalize._exitfunc, logging.shutdown, *_at_exit):  # type: ignore[attr-defined]
            atexit.register(function)
    os.environ.clear()
    os.environ.update(process["environment"])
    code = _run(process["arguments"])
    if WHOLE_END in os.environ and not is_own_child:
        ctypes.pythonapi.Py_Exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _libc.fflush(None)
    os._exit(code)


def set_command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Makes these what /proc says are this process's command line and environment; whether the kernel lets us."""
    global _command_line_block
    command = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    block = ctypes.create_string_buffer(command + variables, len(command) + len(variables))
    begin = ctypes.addressof(block)
    with open("/proc/self/stat", encoding="utf-8") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    start_code, end_code, start_stack, start_data, end_data, start_brk = (
        int(fields[number - 3])
        for number in (26, 27, 28, 45, 46, 47)  # as proc(5) numbers them
    )
    _libc.sbrk.restype = ctypes.c_void_p
    parts = struct.pack(  # `struct prctl_mm_map` of linux/prctl.h
        "12Q2I",
        *(start_code, end_code, start_data, end_data, start_brk, _libc.sbrk(0), start_stack),
        *(begin, begin + len(command), begin + len(command), begin + len(block), 0, 0, 0xFFFFFFFF),
    )
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, parts, ctypes.c_ulong(len(parts)), 0):
        return False
    _command_line_block = block
    return True


def _install_files(files: dict[int, int]) -> None:
    above = max(files) + 1
    moved = {number: fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, above) for number, ours in files.items()}
    for number, descriptor in moved.items():
        os.dup2(descriptor, number, inheritable=True)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in files:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _run(arguments: list[str]) -> int:
    """Runs this as an interpreter does; the exit code."""
    for name in [name for name in sys.modules if name not in _loaded]:
        if name.startswith(("neuron", "torch_xla", "torch_neuronx", "tests.")):
            del sys.modules[name]
    unbuffered = arguments[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = _stream(number, unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    set_command_line([sys.executable, *arguments], os.environ)
    sys.orig_argv[:] = [sys.executable, *arguments]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("neurontools")]
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # noqa: PTH109
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        torch.default_generator.seed()  # which a start draws anew
    try:
        if any(name in os.environ for name in _OPT_IN) and os.environ.get("NEURONTOOLS_RUNTIME") != "0":
            importlib.import_module("neurontools.runtime.startup.torch_xla_path")
        _run_main([argument for argument in arguments if argument != "-u"] if unbuffered else arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frames
        sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def _stream(number: int, unbuffered: bool) -> Any:
    try:
        mode, buffering = ("rb", -1) if number == 0 else ("wb", 0 if unbuffered else -1)
        file = open(number, mode, buffering, closefd=False)  # noqa: SIM115
    except OSError:
        return None  # the descriptor is closed
    return io.TextIOWrapper(
        file,
        sys.getfilesystemencoding(),
        "backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or file.isatty(),
        write_through=unbuffered,
    )


def _run_main(arguments: list[str]) -> None:
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*given, *(path for path in _paths if path not in given)]
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if arguments[0] == "-P":
        del arguments[0]
    elif arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    if arguments[0] == "-m":
        sys.argv[:] = ["-m", *arguments[2:]]
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        path = arguments[0]
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
        sys.argv[:] = list(arguments)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
        with open(path, "rb") as file:  # noqa: PTH123
            source = file.read()
        exec(compile(source, path, "exec"), main.__dict__)


def _execute(program: Any, command: list[str]) -> NoReturn:
    """execv: of this interpreter, in this process."""
    arguments = [argument for argument in command[1:] if argument not in ("-P", "-B")]
    if program != sys.executable or not can_be_forked(arguments, os.environ):
        _execv(program, command)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if not os.get_inheritable(int(name)):
                os.close(int(name))
    sys.exit(_run(arguments))


def _serve(server: socket.socket) -> None:
    """Starts processes until nobody can ask any more."""
    while True:
        message, received, _, _ = socket.recv_fds(server, MESSAGE_BYTES, MOST_FILES)
        if not message:
            return
        process = json.loads(message)
        files = dict(zip(process["files"], received, strict=True))
        # It closes its end when it is what was asked for, and takes signals as that.
        pid = fork_orphan(lambda _: become(process, files))  # noqa: B023  (called at once)
        for descriptor in received:
            os.close(descriptor)
        server.send(pid)


def fork_orphan(run: Callable[[socket.socket], NoReturn]) -> bytes:
    """Forks a process that the reaper of orphans adopts, and that runs this; its PID, once it has closed the socket.

    `run` closes it when the process is ready, and never returns.
    """
    ours, theirs = socket.socketpair()
    middle = os.fork()
    if middle == 0:
        if os.fork():
            os._exit(0)
        theirs.send(str(os.getpid()).encode())
        theirs.recv(1)  # until the reaper is our parent
        ours.close()
        run(theirs)
    os.waitpid(middle, 0)
    theirs.close()
    with ours:
        pid = ours.recv(20)
        ours.send(b"x")
        ours.recv(1)
    return pid


def _register_and_keep(function: Any, *given: Any, **named: Any) -> Any:
    """atexit.register while modules are loaded; what our modules register is for an own child too."""
    if str(function.__module__).startswith("neurontools."):
        _at_exit.append(function)
    return _register(function, *given, **named)


def _main() -> None:
    global _loaded
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    os.execv = _execute  # type: ignore[assignment]
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # here, where no process is meant to have a device
    atexit.register = _register_and_keep  # type: ignore[assignment]
    for name in sys.argv[2:]:
        importlib.import_module(name)
    atexit.register = _register
    sys.modules["loaded_interpreter"] = sys.modules["__main__"]
    _loaded = frozenset(sys.modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as server:
        try:
            _serve(server)
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    _main()
