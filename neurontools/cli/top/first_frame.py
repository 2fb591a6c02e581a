"""Writes lines to the terminal without Textual: text screens, and the first frame of the dashboard."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import time
import tty
from collections.abc import Iterator, Sequence

from neurontools.cli.top.options import chosen_theme
from neurontools.util.command_lifecycle import EndedBySignal, write_document, write_text
from neurontools.util.signals import defer_signals
from neurontools.util.terminal import escape_controls, terminal_size
from neurontools.views.drawing.lines import THEMES, Line, Style, TextPage, plain_text

_USUAL_SIZE = (120, 50)
_STDIN, _STDOUT = 0, 1
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Escape sequences that ask the terminal for its background colour, then for its attributes, which all terminals report.
_ASK_BACKGROUND = "\x1b]11;?\x1b\\\x1b[c"
# Seconds to wait for the terminal's answer. The dashboard would take a later answer for typed keys.
_PATIENCE_SECONDS = 0.4
_ANSWER = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]")


class FirstFrameTerminal:
    """Paints the first frame on the terminal. `close` restores the terminal.

    If the terminal is lost, the command ends as after SIGHUP, because a shell may send SIGHUP late or never.
    """

    def __init__(self) -> None:
        with _hangup_on_error():
            self.attributes_before = termios.tcgetattr(_STDIN)
        self._stop_handler = signal.getsignal(signal.SIGTSTP)
        self._is_asked = False
        self._typed = b""
        self._is_painted = False

    def paint(self, page: TextPage, theme_name: str, *, ask_background: bool) -> None:
        """Paints a page on the alternate screen. With `ask_background`, asks the terminal for its background."""
        rows = "".join(f"\x1b[{row};1H{line_ansi(line, theme_name)}" for row, line in enumerate(page.lines, 1))
        self._is_asked = ask_background
        text = f"{_ENTER}{rows}\x1b[0m{_ASK_BACKGROUND if ask_background else ''}"
        # Ignores Ctrl-Z until Textual handles it, or the shell would get the alternate screen.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        with _hangup_on_error(), defer_signals():
            # Turns off echo, so that typed characters do not appear in the frame.
            tty.setcbreak(_STDIN, termios.TCSANOW)
            self._is_painted = True
            os.write(_STDOUT, text.encode("utf-8", "replace"))

    def hand_over(self) -> None:
        """Makes Textual responsible for restoring the main screen, instead of `close`."""
        self._is_painted = False

    def has_light_background(self) -> bool | None:
        """Returns whether the terminal reports a light background; None if it did not answer or was not asked."""
        if not self._is_asked:
            return None
        deadline = time.monotonic() + _PATIENCE_SECONDS
        reply = b""
        while time.monotonic() < deadline and not _is_complete(reply):
            if select.select([_STDIN], [], [], max(0.0, deadline - time.monotonic()))[0]:
                reply += _read_terminal()
        self._is_asked = False
        self._typed = _ANSWER.sub(b"", reply)
        return is_light_background(reply)

    @property
    def typed_characters(self) -> str:
        """The printable characters that the user typed before Textual started."""
        while select.select([_STDIN], [], [], 0)[0]:
            self._typed += _ANSWER.sub(b"", _read_terminal())
        return "".join(filter(str.isprintable, self._typed.decode("utf-8", "ignore")))

    def close(self) -> None:
        """Restores the terminal attributes, the SIGTSTP handler and, unless Textual does that, the main screen."""
        with contextlib.suppress(OSError, termios.error):  # the terminal may be closed
            if self._is_painted:
                os.write(_STDOUT, _LEAVE.encode())
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self.attributes_before)
        signal.signal(signal.SIGTSTP, self._stop_handler)


def _read_terminal() -> bytes:
    with _hangup_on_error():
        part = os.read(_STDIN, 1024)
    if not part:
        raise EndedBySignal(signal.SIGHUP)
    return part


@contextlib.contextmanager
def _hangup_on_error() -> Iterator[None]:
    try:
        yield
    except (OSError, termios.error):
        raise EndedBySignal(signal.SIGHUP) from None


def _is_complete(reply: bytes) -> bool:
    start = reply.find(b"\x1b[?")
    return start >= 0 and b"c" in reply[start:]


def is_light_background(reply: bytes) -> bool | None:
    """Returns whether an OSC 11 reply describes a light background; None if the reply cannot be parsed."""
    start = reply.find(b"]11;rgb:")
    if start < 0:
        return None
    body = reply[start + 8 :].split(b"\x1b", 1)[0].split(b"\x07", 1)[0]
    try:
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in body.split(b"/"))
    except (ValueError, ZeroDivisionError):
        return None
    return bool(0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5)


def write_lines(given: dict[str, str], lines: Sequence[Line]) -> None:
    """Prints lines: in colours with --color always or FORCE_COLOR, else as plain text."""
    if given.get("color") == "always" or (bool(os.environ.get("FORCE_COLOR")) and "color" not in given):
        theme = chosen_theme(given.get("theme", "auto"), given, os.environ)
        write_document("".join(f"{line_ansi(line, theme)}\x1b[0m\n" for line in lines).encode())
    else:
        write_text("".join(f"{plain_text(line)}\n" for line in lines))


def screen_width() -> int:
    """Returns the width of the terminal, or of COLUMNS without a terminal; at least 20."""
    return max(20, terminal_size(1, _USUAL_SIZE)[0])


def line_ansi(line: Line, theme_name: str) -> str:
    """Returns a line as text with escape sequences for its styles in a theme."""
    theme = THEMES[theme_name]
    return "".join(f"\x1b[{_sgr(theme.style(style))}m{escape_controls(text)}" for text, style in line)


def _sgr(style: Style) -> str:
    flags = ((True, "0"), (style.bold, "1"), (style.dim, "2"), (style.underline, "4"), (style.reverse, "7"))
    codes = [code for is_set, code in flags if is_set]
    for color, lead in ((style.color, "38"), (style.background, "48")):
        if color is not None:
            codes.append(f"{lead};2;{int(color[1:3], 16)};{int(color[3:5], 16)};{int(color[5:7], 16)}")
    return ";".join(codes)
