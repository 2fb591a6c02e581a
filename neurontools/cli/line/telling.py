"""What a command says on standard error, harmless to a terminal: its narration, and what it failed with.

A failure that is neither meant for the user nor the operating system's is a fault of ours: a line that says where it
is, and exit code 70, which nothing else has, so that no test that expects an ordinary failure can take it for one.
NEURONTOOLS_TRACEBACK=1 shows the whole traceback.
"""

from __future__ import annotations

import os

from neurontools.util.errors import EXIT_FAILURE, EXIT_FAULT, UserError
from neurontools.util.terminal import escape_controls, escape_controls_by_line

TRACEBACK_VARIABLE = "NEURONTOOLS_TRACEBACK"
_STDERR = 2


def tell(text: str) -> None:
    """A line on standard error; lost when there is none."""
    _write(escape_controls(text))


def tell_lines(text: str) -> None:
    """Text of several lines on standard error; lost when there is none."""
    _write(escape_controls_by_line(text))


def tell_failure(command: str, error: Exception, *, is_service: bool) -> int:
    """Tell what a command failed with; its exit code. A service shows the whole traceback of what is not for a user."""
    if isinstance(error, UserError):
        text = str(error)
        tell(f"{command}: {text}" if error.is_named else text)
        return error.exit_code
    if isinstance(error, MemoryError):
        tell(f"{command}: out of memory; end other programs, or give it more")
        return EXIT_FAILURE
    if is_service or os.environ.get(TRACEBACK_VARIABLE):
        _tell_traceback(error)
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        tell(f"{command}: {error.filename or 'operating system'}: {what}; look at its disk and permissions")
        return EXIT_FAILURE
    tell(f"{command}: a fault of its own: {_shown(error)}; {TRACEBACK_VARIABLE}=1 tells more; please report it")
    return EXIT_FAULT


def _shown(error: Exception) -> str:
    from traceback import extract_tb

    places = extract_tb(error.__traceback__)
    where = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def _tell_traceback(error: BaseException) -> None:
    from traceback import format_exception

    tell_lines("".join(format_exception(error)).rstrip("\n"))


def _write(text: str) -> None:
    try:
        os.write(_STDERR, text.encode() + b"\n")
    except OSError:
        return  # nobody is told; what is done is done all the same
