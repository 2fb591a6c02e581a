"""How every command ends: one place for what can go wrong on the way, and for what the shell is told of it.

* An error that is meant for the user, or one of the operating system, is a line on standard error.
* A reader that went away ends the command by SIGPIPE, a signal by that signal, once all is cleaned up. So a shell, a
  pipeline or a service manager sees what it sees of other tools. Ctrl-C gives exit code 130.
* Anything else is a fault of ours: a line that says where it is, and exit code 70, which nothing else has, so that no
  test that expects an ordinary failure can take it for one. NEURONTOOLS_TRACEBACK=1 shows the whole traceback.

The process ends without the interpreter's slow farewell: what has to be cleaned up is in contexts.
"""

from __future__ import annotations

import os
import sys

from neurontools.cli.line.output import ReaderGone, reserve_standard_streams, tell, tell_lines, unwritable
from neurontools.errors import EXIT_FAILURE, EXIT_FAULT, EXIT_INTERRUPTED, UserError

TYPE_CHECKING = False  # as typing has it, whose import takes too long for neuron-ls
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

TRACEBACK_VARIABLE = "NEURONTOOLS_TRACEBACK"


class EndedBySignal(SystemExit):
    """A signal said to end; raised in the main thread, so that contexts are left."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def end_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """A handler for signals that shall end the command in good order."""
    raise EndedBySignal(number)


def run(command: str, work: Callable[[list[str]], int], *, is_service: bool = False) -> NoReturn:
    """Run a command and end the process; `work` gets the arguments, and returns the exit code.

    A fault of a service is told with its whole traceback: nobody was there to see it, and it can't be had again.
    """
    reserve_standard_streams()
    try:
        exit_code = _exit_code(command, work, shows_traceback=is_service or bool(os.environ.get(TRACEBACK_VARIABLE)))
    except KeyboardInterrupt:  # also one that came while another end was on its way
        exit_code = EXIT_INTERRUPTED
    except ReaderGone:
        from signal import SIGPIPE

        _end_by(SIGPIPE)
    except EndedBySignal as end:
        _end_by(end.number)
    os._exit(exit_code)


def _exit_code(command: str, work: Callable[[list[str]], int], *, shows_traceback: bool) -> int:
    try:
        exit_code = _worked(work)
        _flush()
    except UserError as error:
        text = str(error)
        tell(f"{command}: {text}" if error.is_named else text)
        return error.exit_code
    except ReaderGone:
        raise
    except MemoryError:
        tell(f"{command}: out of memory; end other programs, or give it more")
        return EXIT_FAILURE
    except OSError as error:
        if shows_traceback:
            _tell_traceback(error)
        what = error.strerror or str(error) or type(error).__name__
        tell(f"{command}: {error.filename or 'operating system'}: {what}; look at its disk and permissions")
        return EXIT_FAILURE
    except Exception as error:  # whatever it is, the user gets a line
        if shows_traceback:
            _tell_traceback(error)
        tell(f"{command}: a fault of its own: {_shown(error)}; {TRACEBACK_VARIABLE}=1 tells more; please report it")
        return EXIT_FAULT
    return exit_code


def _worked(work: Callable[[list[str]], int]) -> int:
    try:
        return work(sys.argv[1:])
    except EndedBySignal:
        raise
    except SystemExit as end:
        if isinstance(end.code, str):
            raise UserError(end.code) from end
        return end.code or 0


def _flush() -> None:
    """What libraries printed; the commands themselves write at once."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise unwritable(error) from error
    except ValueError:  # it is closed
        pass


def _shown(error: Exception) -> str:
    from traceback import extract_tb

    places = extract_tb(error.__traceback__)
    where = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def _tell_traceback(error: BaseException) -> None:
    from traceback import format_exception

    tell_lines("".join(format_exception(error)).rstrip("\n"))


def _end_by(number: int) -> NoReturn:
    """Ends the process as the signal does by itself: Python ignores SIGPIPE, and others may have a handler."""
    import signal

    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the signal was blocked
