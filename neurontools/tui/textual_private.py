"""Access to the private names of Textual that neuron-top uses.

For each name, PRIVATE_PARTS has a fallback and the last Textual version in which the name was verified. If a name of
the driver is missing, `driver_class` returns None and Textual uses its own driver.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from textual import constants, events
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.keys import KEY_NAME_REPLACEMENTS
from textual.message import Message
from textual.widget import Widget

from neurontools.tui.terminal import TerminalOutput, TypedAhead
from neurontools.util.terminal import terminal_size


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """A private name of Textual: a test for its presence, the fallback, and the version it was verified with."""

    name: str
    is_present: Callable[[], bool]
    fallback: str
    checked_with: str = "8.2.8"
    is_of_driver: bool = True


def import_optional(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


def uses_attribute(owner: type[Any] | None, name: str) -> Callable[[], bool]:
    """Returns a function that tests whether a class or its bases define an attribute or use it in a method."""

    def is_present() -> bool:
        members = [member for base in getattr(owner, "__mro__", ()) for member in vars(base).items()]
        codes = [getattr(member, "__code__", None) for _, member in members]
        return any(key == name for key, _ in members) or any(code and name in code.co_names for code in codes)

    return is_present


_XTermParser = import_optional("textual._xterm_parser", "XTermParser")
_WriterThread = import_optional("textual.drivers._writer_thread", "WriterThread")
textual_character_to_key = import_optional("textual.keys", "_character_to_key")
_OWN_DRIVER = "Textual's own driver reads and writes the terminal"

PRIVATE_PARTS = (
    PrivatePart("textual._xterm_parser.XTermParser", lambda: _XTermParser is not None, _OWN_DRIVER),
    PrivatePart("WriterThread._queue", uses_attribute(_WriterThread, "_queue"), _OWN_DRIVER),
    *(
        PrivatePart(f"LinuxDriver.{name}", uses_attribute(LinuxDriver, name), _OWN_DRIVER)
        for name in (
            "_app",
            "_disable_mouse_support",
            "_file",
            "_get_terminal_size",
            "_key_thread",
            "_mouse_pixels",
            "_must_signal_resume",
            "_run_input_thread",
            "_writer_thread",
        )
    ),
    PrivatePart(
        "Widget._styles_cache",
        uses_attribute(Widget, "_styles_cache"),
        "Widget.refresh draws the whole widget again",
        is_of_driver=False,
    ),
    PrivatePart(
        "textual.keys._character_to_key",
        lambda: textual_character_to_key is not None,
        "the key name is made from the Unicode name of the character",
        is_of_driver=False,
    ),
)


def missing_parts() -> list[str]:
    return [part.name for part in PRIVATE_PARTS if not part.is_present()]


def driver_class(*, continues: bool) -> type[Driver] | None:
    """Returns the value for `App(driver_class=...)`. `continues`: the first frame is already on the alternate screen.

    Returns None, which selects Textual's own driver, if Textual lacks a private name that our drivers use.
    """
    if any(part.is_of_driver and not part.is_present() for part in PRIVATE_PARTS):
        return None
    return HandoverDriver if continues else TerminalDriver


def character_to_key(character: str) -> str:
    """Returns Textual's name of the key that types a character, such as `a`, `slash` or `left_square_bracket`."""
    if textual_character_to_key is not None:
        key: str = textual_character_to_key(character)
        return key
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def forget_rendered_lines(widget: Widget) -> None:
    """Drops Textual's cached lines of a widget, which are stale after a direct write to the terminal."""
    cache = getattr(widget, "_styles_cache", None)
    if cache is None:
        widget.refresh()
    else:
        cache.clear()


_ENTER_ALTERNATE_SCREEN = "\x1b[?1049h"
_MOST_WAITING = 2  # limit of queued writes; with 30 queued, Textual blocks its event loop


class TerminalDriver(LinuxDriver):
    """Textual driver that measures the terminal as the first frame does, and survives the loss of the terminal.

    It reads and writes in the event loop's thread, because on a busy host each additional thread waits for a vCPU.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert sys.__stdout__ is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        self._hang_up = partial(self._app.exit, return_code=128 + signal.SIGHUP)
        self._output = TerminalOutput(sys.__stdout__, lambda: loop.call_soon_threadsafe(self._hang_up))
        self._file: Any = self._output
        self._input = TerminalInput(self.fileno, self.process_message, self._hang_up)
        setattr(self._app, "terminal_driver", self)  # noqa: B010 - an attribute of our applications
        self._typed_ahead: TypedAhead = getattr(self._app, "typed_ahead", None) or TypedAhead()
        self._has_terminal = False
        self._is_waiting = False  # whether to take over the terminal again on SIGCONT
        self._attributes_before: list[Any] | None = getattr(self._app, "attributes_before", None)
        # Unlike Textual's handlers, handlers of the event loop do not interrupt the takeover of the terminal.
        loop.add_signal_handler(signal.SIGTSTP, self._on_sigtstp)
        loop.add_signal_handler(signal.SIGCONT, self._on_sigcont)

    @property
    def is_behind(self) -> bool:
        """Whether more than two writes are queued, so that another frame would delay the response to keys."""
        writer = self._writer_thread
        return writer is not None and writer._queue.qsize() > _MOST_WAITING  # noqa: SLF001

    def write(self, data: str) -> None:
        if self._writer_thread is None:
            return  # the application does not own the terminal
        rest = self._output.write_at_once(data)
        if rest:
            super().write(rest)

    def paint(self, data: str) -> None:
        """Writes changed cells; drops them while the application does not own the terminal."""
        if self._has_terminal:
            self.write(data)

    def send_message(self, message: Message) -> None:
        """Posts a message to the application. After the user has left the page, stores keys for the next page."""
        if self._typed_ahead.is_collecting and isinstance(message, events.Key):
            self._typed_ahead.add(message.key, message.character, is_unread=True)
        else:
            self._app.post_message(message)

    def start_application_mode(self) -> None:
        """Takes over the terminal, unless another process owns the terminal or it is closed."""
        if self._attributes_before is None:
            with suppress(termios.error):
                self._attributes_before = termios.tcgetattr(self.fileno)
        self._output.open()
        self._key_thread = None
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._has_terminal = self._is_taken_over()
        self._is_waiting = not self._has_terminal
        if self._has_terminal:
            self._input.begin()
        elif not _is_terminal(self.fileno):
            self._hang_up()

    def _is_taken_over(self) -> bool:
        return self._key_thread is not None

    def _on_sigtstp(self) -> None:
        """Handles SIGTSTP: returns the terminal to the shell and stops the process."""
        if self._has_terminal:
            self.suspend_application_mode()
            self._is_waiting = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_sigcont(self) -> None:
        """Handles SIGCONT: takes over the terminal again, whose modes the shell may have changed."""
        if self._has_terminal:
            self.suspend_application_mode()
        elif not self._is_waiting:
            return  # the application is ending, so it does not need the terminal again
        self._must_signal_resume = True
        self.resume_application_mode()

    def disable_input(self) -> None:
        """Stops reading. Drops unread input, unless it is stored for the next page."""
        if not self._typed_ahead.is_collecting:
            self._input.end()
            super().disable_input()
            return
        self._input.finish()
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        self._disable_mouse_support()

    def close(self) -> None:
        super().close()
        self._output.close()

    def _run_input_thread(self) -> None:
        """Does nothing, because the event loop reads the terminal."""

    def stop_application_mode(self) -> None:
        """Returns the terminal to the shell. Turns off mouse reports in pixels, which Textual leaves on."""
        self._has_terminal = False
        if self._mouse_pixels:
            self._mouse_pixels = False
            self.write("\x1b[?1016l")
        super().stop_application_mode()

    def suspend_application_mode(self) -> None:
        """Returns the terminal to the shell, with the modes from before the first frame."""
        super().suspend_application_mode()
        self._writer_thread = None
        if self._attributes_before is not None:
            with suppress(termios.error):  # the terminal may be closed
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._attributes_before)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal_size()


def _is_terminal(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error:
        return False
    return True


class HandoverDriver(TerminalDriver):
    """Driver that takes over after the first frame, without switching screens again, which would clear the frame."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_entered = False

    def write(self, data: str) -> None:
        if data == _ENTER_ALTERNATE_SCREEN and not self._is_entered:
            self._is_entered = True
            self._app.on_takeover()  # type: ignore[attr-defined]
            return
        super().write(data)


_MOST_BYTES = 4096
_MOST_LAST_READS = 16
# Seconds without further input after which an Esc byte counts as the key Esc, not as an escape sequence.
_AFTER_ESCAPE_SECONDS = constants.ESCAPE_DELAY + 0.001


class TerminalInput:
    """Reads keys and mouse events from a terminal, from `begin` to `end` or `finish`.

    Passes each message to `handle`. Calls `on_end` when the terminal is closed.
    """

    def __init__(self, descriptor: int, handle: Callable[[Message], object], on_end: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._handle = handle
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self._is_reading = False

    def begin(self) -> None:
        """Starts reading. Drops an incomplete escape sequence or character from earlier reading."""
        self._parser = _XTermParser()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._loop.add_reader(self._descriptor, self._read)
        self._is_reading = True

    def end(self) -> None:
        """Stops reading. Does nothing if reading has already stopped."""
        self._loop.remove_reader(self._descriptor)
        self._is_reading = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def finish(self) -> None:
        """Reads the input that is already available, then stops. Does nothing if reading has already stopped."""
        for _ in range(_MOST_LAST_READS):
            if not self._is_reading or not select.select([self._descriptor], [], [], 0)[0]:
                break
            self._read()
        self.end()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _MOST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            self._on_end()
            return
        if self._waiting is not None:
            self._waiting.cancel()
        for message in self._parser.feed(self._decode(data)):
            self._handle(message)
        self._waiting = self._loop.call_later(_AFTER_ESCAPE_SECONDS, self._after_escape)

    def _after_escape(self) -> None:
        self._waiting = None
        for message in self._parser.tick():
            self._handle(message)
