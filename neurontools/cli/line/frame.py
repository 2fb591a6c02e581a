"""How every command begins, writes its data and ends: one place for all of them.

* An error that is meant for the user, or one of the operating system, is a line on standard error (`telling`).
* A reader that went away ends the command by SIGPIPE, a signal by that signal, once all is cleaned up. So a shell, a
  pipeline or a service manager sees what it sees of other tools. Ctrl-C gives exit code 130.
* What is written is data on standard output. Here is the edge at which text from elsewhere (commands, tags, paths,
  replies) is made harmless to a terminal; what needs its bytes as they are takes `write_document`.

The process ends without the interpreter's slow farewell: what has to be cleaned up is in contexts. What only failures
need is imported by them, because neuron-ls waits for this module.
"""

import _signal  # type: ignore[import-not-found]  # below `signal`, which makes enumerations of all it takes and gives
import os
import sys
from time import monotonic

from neurontools.util.errors import EXIT_INTERRUPTED, UserError

TYPE_CHECKING = False  # as typing has it, whose import takes too long for neuron-ls
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
    """Standard output was closed at its other end; the command ends as SIGPIPE ends any other."""


class EndedBySignal(SystemExit):
    """A signal said to end; raised in the main thread, so that contexts are left."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def end_on_signal(number: int, _frame: "FrameType | None" = None) -> None:
    """The handler of signals that end a command: raises EndedBySignal.

    Not for one that comes while the end by another is on its way: it would leave what is cleaned up half done.
    """
    global _is_ending_until
    now = monotonic()
    if now >= _is_ending_until:
        _is_ending_until = now + _CLEANING_SECONDS
        raise EndedBySignal(number)


def run(command: str, work: "Callable[[list[str]], int]", *, is_service: bool = False) -> "NoReturn":
    """Run a command and end the process; `work` gets the arguments, and returns the exit code.

    A fault of a service is told with its whole traceback: nobody was there to see it, and it can't be had again.
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
        _end_by(_signal.SIGPIPE)
    except EndedBySignal as end:
        _end_by(end.number)


def run_module(name: str) -> None:
    """Import the module of a command and run its `main`; Ctrl-C during the imports ends it as it does later.

    At once, as there is nothing to clean up: what is raised in the midst of an import may be lost.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)
    main = __import__(name, fromlist=["main"]).main
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    main()


def write_document(document: bytes) -> None:
    """Write it to standard output, whole and as it is; nothing of it may come from elsewhere unescaped.

    ReaderGone when nobody reads any more. UserError when it can't be written, on a full disk for example.
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
            raise _unwritable(error) from error


def write_text(text: str) -> None:
    """Write lines of text to standard output, harmless to a terminal; errors as those of `write_document`."""
    document = text.encode("utf-8", "surrogatepass")
    if document.translate(None, _PLAIN):  # much faster than to ask each character
        from neurontools.util.terminal import escape_controls_by_line

        document = escape_controls_by_line(text).encode()
    write_document(document)


def _reserve_standard_streams() -> None:
    """Sees to it that nothing that is opened from here on gets the number of a standard stream that is closed.

    What a command writes would else go there, to its own connection to the daemon for example. Reading from such a
    stream ends at once, writing fails.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest number there is


def _exit_code(command: str, work: "Callable[[list[str]], int]", *, is_service: bool) -> int:
    try:
        exit_code = _worked(work)
        _flush()
    except (ReaderGone, EndedBySignal):
        raise
    except Exception as error:  # whatever it is, the user gets a line
        interruption = _interruption(error)
        if interruption is not None:
            raise interruption from None
        from neurontools.cli.line.telling import tell_failure

        return tell_failure(command, error, is_service=is_service)
    return exit_code


def _worked(work: "Callable[[list[str]], int]") -> int:
    try:
        return work(sys.argv[1:])
    except EndedBySignal:
        raise
    except SystemExit as end:
        if isinstance(end.code, str):
            raise UserError(end.code) from end
        return end.code or 0
    finally:
        standing = sys.modules.get("neurontools.rpc.tunnel_registry")  # where nothing was far away, nothing is loaded
        if standing is not None:
            from neurontools.util.signals import DeferredSignals

            with DeferredSignals():
                standing.end_all()


def _leave(_number: int, _frame: "FrameType | None") -> "NoReturn":
    os._exit(EXIT_INTERRUPTED)


def _interruption(error: BaseException) -> BaseException | None:
    """What ended the command before this came in its wake, as where a second signal meets a lock that is given back."""
    found = None
    before = error.__context__
    while before is not None:
        if isinstance(before, (KeyboardInterrupt, EndedBySignal)):
            found = before
        before = before.__context__
    return found


def _flush() -> None:
    """What libraries printed; the commands themselves write at once."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise _unwritable(error) from error
    except ValueError:  # it is closed
        pass


def _unwritable(error: OSError) -> UserError:
    """What a user is told when standard output takes nothing."""
    return UserError(f"can't write to standard output: {error.strerror}; free space or write elsewhere")


def _end_by(number: int) -> "NoReturn":
    """Ends the process as the signal does by itself: Python ignores SIGPIPE, and others may have a handler."""
    _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the signal was blocked
