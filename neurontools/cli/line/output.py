"""What a command writes: data to standard output, narration to standard error."""

from __future__ import annotations

import os

from neurontools.errors import EXIT_FAILURE, UserError

_STDOUT, _STDERR = 1, 2


def reserve_standard_streams() -> None:
    """Sees to it that nothing that is opened from here on gets the number of a standard stream that is closed.

    What a command writes would else go there, to its own connection to the daemon for example. Reading from such a
    stream ends at once, writing fails.
    """
    for descriptor in (0, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest number there is


def write_document(document: bytes) -> None:
    """Write it to standard output, whole.

    A reader that went away ends the process as SIGPIPE ends any other, without a word. UserError when it can't be
    written, on a full disk for example.
    """
    rest = memoryview(document)
    try:
        while rest:
            rest = rest[os.write(_STDOUT, rest) :]
    except BrokenPipeError:
        _end_by_sigpipe()
    except OSError as error:
        raise UserError(f"can't write to standard output: {error.strerror}; free space or write elsewhere") from error


def tell(text: str) -> None:
    """A line on standard error; lost when there is none."""
    from contextlib import suppress

    from neurontools.text.terminal import visible

    with suppress(OSError):
        os.write(_STDERR, visible(text).encode() + b"\n")


def _end_by_sigpipe() -> None:
    """Python ignores SIGPIPE; a shell with pipefail expects the end that other tools make."""
    import signal

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(EXIT_FAILURE)  # the signal was blocked
