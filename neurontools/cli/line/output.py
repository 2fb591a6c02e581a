"""What a command writes: data to standard output, narration to standard error.

Here is the edge at which text from elsewhere (commands, tags, paths, replies) is made harmless to a terminal: all that
is told, and all text that goes out by `write_text`. What needs its bytes as they are takes `write_document`.
"""

from __future__ import annotations

import os

from neurontools.errors import UserError

_STDOUT, _STDERR = 1, 2
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n"


class ReaderGone(Exception):
    """Standard output was closed at its other end; the command ends as SIGPIPE ends any other."""


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
            raise unwritable(error) from error


def write_text(text: str) -> None:
    """Write lines of text to standard output, harmless to a terminal; errors as those of `write_document`."""
    document = text.encode("utf-8", "surrogatepass")
    if document.translate(None, _PLAIN):  # much faster than to ask each character
        document = _harmless(text).encode()
    write_document(document)


def unwritable(error: OSError) -> UserError:
    """What a user is told when standard output takes nothing."""
    return UserError(f"can't write to standard output: {error.strerror}; free space or write elsewhere")


def tell(text: str) -> None:
    """A line on standard error; lost when there is none."""
    from neurontools.text.terminal import visible

    _tell(visible(text))


def tell_lines(text: str) -> None:
    """Text of several lines on standard error; lost when there is none."""
    _tell(_harmless(text))


def _tell(text: str) -> None:
    try:
        os.write(_STDERR, text.encode() + b"\n")
    except OSError:
        return  # nobody is told; what is done is done all the same


def _harmless(text: str) -> str:
    """The text with every line made visible; its line ends stay."""
    from neurontools.text.terminal import visible

    return "\n".join(map(visible, text.split("\n")))
