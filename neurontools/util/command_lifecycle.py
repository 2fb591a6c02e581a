"""Runs commands: standard streams, signals, output, error lines and exit codes."""

import _signal  # type: ignore[import-not-found]  # `signal` builds enums on import, which delays the start
import os
import sys
from time import monotonic

from neurontools.util.errors import EXIT_FAILURE, EXIT_FAULT, EXIT_INTERRUPTED, UserError

TYPE_CHECKING = False  # defined here, because importing it from `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn


_STDIN, _STDOUT, _STDERR = 0, 1, 2
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n"
_ENDING = (_signal.SIGTERM, _signal.SIGHUP)
_CLEANING_SECONDS = 5.0  # seconds for which further signals are ignored after a signal

_is_ending_until = 0.0  # monotonic time until which further signals are ignored


class OutputClosed(Exception):
    """The reader of standard output closed the pipe. The command then dies of SIGPIPE, like other tools."""


class OutputError(UserError):
    """Standard output could not be written, such as to a full disk. `reason` is the system's text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"can't write to standard output: {reason}; free space or write elsewhere")
        self.reason = reason


class EndedBySignal(SystemExit):
    """Raised in the main thread when a signal ends the command, so that context managers clean up."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def end_on_signal(number: int, _frame: "FrameType | None" = None) -> None:
    """Ends a command from a signal handler, by raising EndedBySignal.

    Ignores further signals for 5 s, so that they do not interrupt the clean-up.
    """
    global _is_ending_until
    now = monotonic()
    if now >= _is_ending_until:
        _is_ending_until = now + _CLEANING_SECONDS
        raise EndedBySignal(number)


def run_command(command: str, work: "Callable[[list[str]], int]", *, is_service: bool = False) -> "NoReturn":
    """Runs a command and ends the process. `work` receives the arguments and returns the exit code.

    On an unexpected exception, a service writes the whole traceback, because the failure may be hard to reproduce.
    """
    _reserve_standard_streams()
    for number in _ENDING:
        if _signal.getsignal(number) == _signal.SIG_DFL:  # nohup makes its child ignore SIGHUP; keep it ignored
            _signal.signal(number, end_on_signal)
    try:
        os._exit(_exit_code(command, work, is_service=is_service))
    except KeyboardInterrupt:  # also if the clean-up after Ctrl-C raised another exception
        os._exit(EXIT_INTERRUPTED)
    except OutputClosed:
        _die_by_signal(_signal.SIGPIPE)
    except EndedBySignal as end:
        _die_by_signal(end.number)


def run_module(name: str) -> None:
    """Imports the module of a command and runs its `main`. Ctrl-C during the import exits immediately.

    Nothing needs clean-up during the import, and a KeyboardInterrupt could be lost there.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit_interrupted)
    main = __import__(name, fromlist=["main"]).main
    if _signal.getsignal(_signal.SIGINT) is _exit_interrupted:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    main()


def write_document(document: bytes) -> None:
    """Writes bytes to standard output unchanged. The caller must escape untrusted text first.

    Raises OutputClosed if the reader closed standard output, and OutputError for other errors, such as a full disk.
    """
    rest = memoryview(document)
    while rest:
        try:
            rest = rest[os.write(_STDOUT, rest) :]
        except BrokenPipeError:
            raise OutputClosed from None
        except BlockingIOError:  # another process that shares the stream set O_NONBLOCK
            import select

            select.select([], [_STDOUT], [])
        except OSError as error:
            raise OutputError(error.strerror or str(error)) from error


def write_text(text: str) -> None:
    """Writes text to standard output with control characters escaped. Raises the same errors as `write_document`."""
    document = text.encode("utf-8", "surrogatepass")
    if document.translate(None, _PLAIN):  # translate is much faster than a check of each character
        from neurontools.util.terminal import escape_controls_by_line

        document = escape_controls_by_line(text).encode()
    write_document(document)


def _reserve_standard_streams() -> None:
    """Opens /dev/null in place of closed standard streams, so that no later file gets their descriptor numbers.

    Otherwise output could go to such a file, for example to the daemon's socket. Reads of a replaced stream return end
    of file. Writes to it fail, because it is open for reading only.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # open() returns the lowest free number: the number of the closed stream


def _exit_code(command: str, work: "Callable[[list[str]], int]", *, is_service: bool) -> int:
    try:
        exit_code = _run_and_cleanup(work)
        _flush_stdout()
    except (OutputClosed, EndedBySignal):
        raise
    except Exception as error:  # the user gets an error line for any exception
        interruption = _interrupting_exception(error)
        if interruption is not None:
            raise interruption from None
        return write_failure(command, error, is_service=is_service)
    return exit_code


def _run_and_cleanup(work: "Callable[[list[str]], int]") -> int:
    try:
        return work(sys.argv[1:])
    except EndedBySignal:
        raise
    except SystemExit as end:
        if isinstance(end.code, str):
            raise UserError(end.code) from end
        return end.code or 0
    finally:
        registry = sys.modules.get("neurontools.rpc.tunnel_registry")  # None if the command opened no tunnel
        if registry is not None:
            from neurontools.util.signals import DeferredSignals

            with DeferredSignals():
                registry.close_tunnels()


def _exit_interrupted(_number: int, _frame: "FrameType | None") -> "NoReturn":
    os._exit(EXIT_INTERRUPTED)


def _interrupting_exception(error: BaseException) -> BaseException | None:
    """Returns the earliest KeyboardInterrupt or EndedBySignal in the context chain of an exception, or None.

    An interrupt is in the context chain if the clean-up after it raised another exception.
    """
    found = None
    before = error.__context__
    while before is not None:
        if isinstance(before, (KeyboardInterrupt, EndedBySignal)):
            found = before
        before = before.__context__
    return found


def _flush_stdout() -> None:
    """Flushes `sys.stdout`, because libraries print there. The commands themselves write unbuffered."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputError(error.strerror or str(error)) from error
    except ValueError:  # sys.stdout is closed
        pass


def _die_by_signal(number: int) -> "NoReturn":
    """Ends this process by sending it a signal. Restores the default action first, because Python ignores SIGPIPE."""
    _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # reached only if the signal is blocked


def exit_code_text(exit_codes: tuple[tuple[int, str], ...]) -> str:
    return "\n".join(("Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in sorted(exit_codes))))


TRACEBACK_VARIABLE = "NEURONTOOLS_TRACEBACK"


def write_stderr(text: str) -> None:
    """Writes a line to standard error, with control characters escaped. Ignores write errors."""
    from neurontools.util.terminal import escape_controls

    _write_bytes(escape_controls(text))


def write_stderr_lines(text: str) -> None:
    """Writes several lines to standard error, with control characters escaped. Ignores write errors."""
    from neurontools.util.terminal import escape_controls_by_line

    _write_bytes(escape_controls_by_line(text))


def write_failure(command: str, error: Exception, *, is_service: bool) -> int:
    """Writes the error line for the exception that ended a command, and returns the exit code.

    A bug in the command itself has exit code 70. For services, or with NEURONTOOLS_TRACEBACK=1, writes the traceback
    too.
    """
    if isinstance(error, UserError):
        text = str(error)
        write_stderr(f"{command}: {text}" if error.is_named else text)
        return error.exit_code
    if isinstance(error, MemoryError):
        write_stderr(f"{command}: out of memory; end other programs, or give it more")
        return EXIT_FAILURE
    if is_service or os.environ.get(TRACEBACK_VARIABLE):
        from traceback import format_exception

        write_stderr_lines("".join(format_exception(error)).rstrip("\n"))
    if isinstance(error, OSError):
        cause = error.strerror or str(error) or type(error).__name__
        write_stderr(f"{command}: {error.filename or 'operating system'}: {cause}; look at its disk and permissions")
        return EXIT_FAILURE
    from traceback import extract_tb

    frames = extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    write_stderr(
        f"{command}: internal error: {type(error).__name__}: {error}{where}; "
        f"set {TRACEBACK_VARIABLE}=1 for the traceback; please report it"
    )
    return EXIT_FAULT


def _write_bytes(text: str) -> None:
    try:
        os.write(_STDERR, text.encode() + b"\n")
    except OSError:
        return  # the message is lost, but the exit code is still right
