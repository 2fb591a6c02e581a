"""How every command starts, writes its output and ends."""

import _signal  # type: ignore[import-not-found]  # `signal` itself builds enums, which slows the start
import os
import sys
from time import monotonic

from neurontools.util.errors import EXIT_FAILURE, EXIT_FAULT, EXIT_INTERRUPTED, UserError

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn


_STDIN, _STDOUT, _STDERR = 0, 1, 2
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n"
_ENDING = (_signal.SIGTERM, _signal.SIGHUP)
_CLEANING_SECONDS = 5.0  # in which a second signal doesn't interrupt what the first has begun

_is_ending_until = 0.0  # by the monotonic clock


class ReaderGone(Exception):
    """The reader closed standard output. The command then ends by SIGPIPE, as other tools do."""


class EndedBySignal(SystemExit):
    """A signal ends the command. Raised in the main thread, so that contexts are left."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def end_on_signal(number: int, _frame: "FrameType | None" = None) -> None:
    """Signal handler that ends a command: raises EndedBySignal.

    Ignores further signals for 5 s, so that they do not interrupt the clean-up.
    """
    global _is_ending_until
    now = monotonic()
    if now >= _is_ending_until:
        _is_ending_until = now + _CLEANING_SECONDS
        raise EndedBySignal(number)


def run_command(command: str, work: "Callable[[list[str]], int]", *, is_service: bool = False) -> "NoReturn":
    """Runs a command and ends the process. `work` receives the arguments and returns the exit code.

    A service writes the whole traceback of a fault, because nobody can reproduce it.
    """
    _reserve_standard_streams()
    for number in _ENDING:
        if _signal.getsignal(number) == _signal.SIG_DFL:  # nohup and the like have them ignored
            _signal.signal(number, end_on_signal)
    try:
        os._exit(_exit_code(command, work, is_service=is_service))
    except KeyboardInterrupt:  # also one that came while another end was on its way
        os._exit(EXIT_INTERRUPTED)
    except ReaderGone:
        _die_by_signal(_signal.SIGPIPE)
    except EndedBySignal as end:
        _die_by_signal(end.number)


def run_module(name: str) -> None:
    """Imports the module of a command and runs its `main`. Ctrl-C during the import ends the process at once.

    An exception raised during an import may be lost, and there is nothing to clean up yet.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit_interrupted)
    main = __import__(name, fromlist=["main"]).main
    if _signal.getsignal(_signal.SIGINT) is _exit_interrupted:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    main()


def write_document(document: bytes) -> None:
    """Writes bytes to standard output unchanged. The caller must have escaped foreign text.

    Raises ReaderGone if the reader closed it, and UserError if writing fails, as on a full disk.
    """
    rest = memoryview(document)
    while rest:
        try:
            rest = rest[os.write(_STDOUT, rest) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except BlockingIOError:  # whoever shares it with us made it so
            import select

            select.select([], [_STDOUT], [])
        except OSError as error:
            raise _stdout_error(error) from error


def write_text(text: str) -> None:
    """Writes text to standard output with control characters escaped. Errors as for `write_document`."""
    document = text.encode("utf-8", "surrogatepass")
    if document.translate(None, _PLAIN):  # much faster than to ask each character
        from neurontools.util.terminal import escape_controls_by_line

        document = escape_controls_by_line(text).encode()
    write_document(document)


def _reserve_standard_streams() -> None:
    """Opens /dev/null for closed standard streams, so that no later file gets their numbers.

    Output would otherwise go to that file, such as the connection to the daemon. Reading such a stream ends at once;
    writing fails.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest number there is


def _exit_code(command: str, work: "Callable[[list[str]], int]", *, is_service: bool) -> int:
    try:
        exit_code = _run_and_cleanup(work)
        _flush_stdout()
    except (ReaderGone, EndedBySignal):
        raise
    except Exception as error:  # whatever it is, the user gets a line
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
        registry = sys.modules.get("neurontools.rpc.tunnel_registry")  # loaded only if a tunnel was opened
        if registry is not None:
            from neurontools.util.signals import DeferredSignals

            with DeferredSignals():
                registry.close_tunnels()


def _exit_interrupted(_number: int, _frame: "FrameType | None") -> "NoReturn":
    os._exit(EXIT_INTERRUPTED)


def _interrupting_exception(error: BaseException) -> BaseException | None:
    """Returns the interrupt that this exception hides, as when a second signal meets a released lock."""
    found = None
    before = error.__context__
    while before is not None:
        if isinstance(before, (KeyboardInterrupt, EndedBySignal)):
            found = before
        before = before.__context__
    return found


def _flush_stdout() -> None:
    """Flushes what libraries printed. The commands themselves write unbuffered."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise _stdout_error(error) from error
    except ValueError:  # it is closed
        pass


def _stdout_error(error: OSError) -> UserError:
    return UserError(f"can't write to standard output: {error.strerror}; free space or write elsewhere")


def _die_by_signal(number: int) -> "NoReturn":
    """Ends the process by this signal. Restores the default action first, because Python ignores SIGPIPE."""
    _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the signal was blocked


def exit_code_text(exit_codes: tuple[tuple[int, str], ...]) -> str:
    """Returns the paragraph of --help on exit codes."""
    return "\n".join(("Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in exit_codes)))


TRACEBACK_VARIABLE = "NEURONTOOLS_TRACEBACK"


def write_stderr(text: str) -> None:
    """Writes a line to standard error. Ignores a closed standard error."""
    from neurontools.util.terminal import escape_controls

    _write_bytes(escape_controls(text))


def write_stderr_lines(text: str) -> None:
    """Writes several lines to standard error. Ignores a closed standard error."""
    from neurontools.util.terminal import escape_controls_by_line

    _write_bytes(escape_controls_by_line(text))


def write_failure(command: str, error: Exception, *, is_service: bool) -> int:
    """Writes the error line of a failed command and returns the exit code.

    A fault of the command itself gives exit code 70. A service, or NEURONTOOLS_TRACEBACK=1, adds the traceback.
    """
    if isinstance(error, UserError):
        text = str(error)
        write_stderr(f"{command}: {text}" if error.is_named else text)
        return error.exit_code
    if isinstance(error, MemoryError):
        write_stderr(f"{command}: out of memory; end other programs, or give it more")
        return EXIT_FAILURE
    if is_service or os.environ.get(TRACEBACK_VARIABLE):
        _write_traceback(error)
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        write_stderr(f"{command}: {error.filename or 'operating system'}: {what}; look at its disk and permissions")
        return EXIT_FAILURE
    write_stderr(
        f"{command}: a fault of its own: {_fault_text(error)}; {TRACEBACK_VARIABLE}=1 tells more; please report it"
    )
    return EXIT_FAULT


def _fault_text(error: Exception) -> str:
    from traceback import extract_tb

    places = extract_tb(error.__traceback__)
    where = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def _write_traceback(error: BaseException) -> None:
    from traceback import format_exception

    write_stderr_lines("".join(format_exception(error)).rstrip("\n"))


def _write_bytes(text: str) -> None:
    try:
        os.write(_STDERR, text.encode() + b"\n")
    except OSError:
        return  # nobody is told; what is done is done all the same
