"""How keys come from a terminal and frames go to one: what is painted, and real pseudo-terminals."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import socket
import threading
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from textual.events import Key

from neurontools.tui.dashboard_widget import StyleSequences, spans, update
from neurontools.tui.terminal import TerminalOutput, TypedAhead
from neurontools.tui.textual_private import TerminalInput
from neurontools.views.drawing.lines import THEMES, Line, fit, plain_text
from tests.harness.terminal_screen import TerminalScreen
from tests.harness.waiting import HANG_SECONDS, is_readable

WIDTH = 30
RUNS = st.lists(
    st.tuples(st.text("ab█▌ 宽", max_size=9), st.sampled_from(["text", "busy", "text+selected"])), max_size=8
)
LINES = st.lists(RUNS.map(lambda runs: fit(tuple(runs), WIDTH)), min_size=3, max_size=3)


def painted(lines: list[Line], before: list[Line]) -> str:
    return update(lines, before, "dark", ColorSystem.TRUECOLOR, WIDTH)


def narrow(line: Line) -> Line:
    return fit(tuple((text.replace("宽", "w"), style) for text, style in line), WIDTH)


@given(LINES, LINES)
def test_after_what_is_painted_the_screen_is_the_new_one(before: list[Line], lines: list[Line]) -> None:
    screen = TerminalScreen(WIDTH, 3)
    old, wanted = ([narrow(line) for line in each] for each in (before, lines))
    for row, line in enumerate(old, 1):
        screen.feed(f"\x1b[{row};1H" + plain_text(line))
    screen.feed(painted(wanted, old))
    assert screen.text == "\n".join(plain_text(line) for line in wanted)
    for line, earlier in zip(lines, before, strict=True):
        found = spans(line, earlier, WIDTH)
        assert found == sorted(found)
        if any("宽" in text for text, _ in (*line, *earlier)):
            continue
        inside = {cell for left, right in found for cell in range(left, right)}
        cells = ([(character, style) for text, style in each for character in text] for each in (line, earlier))
        for cell, (one, other) in enumerate(zip(*cells, strict=True)):
            assert one == other or cell in inside, "every cell that differs is in a span"


def test_no_more_is_written_than_has_changed() -> None:
    before, after = (fit(((f"[{figure}]" + "█" * 20, "busy"),), WIDTH) for figure in ("91.2", "91.3"))
    assert painted([before], [before]) == ""
    assert 0 < len(painted([after], [before])) < 60


def test_monochrome_has_no_colours() -> None:
    sequences = StyleSequences("mono", ColorSystem.TRUECOLOR)
    for name in ("text", "busy", "title", "bad", "text+selected", "track"):
        for code in sequences[name].removeprefix("\x1b[").removesuffix("m").split(";"):
            assert int(code) < 30
    reverse = {name for name, style in THEMES["mono"].styles.items() if style.reverse}
    assert {"title", "title_bad", "column", "column_sorted", "mine"} <= reverse


@dataclass
class Pair:
    """A pseudo-terminal: what a program has, and the other end."""

    program: TextIO
    other: int

    def hang_up(self) -> None:
        os.close(self.other)
        self.other = -1


@pytest.fixture
def pair() -> Iterator[Pair]:
    other, program = pty.openpty()
    tty.setraw(program)
    made = Pair(os.fdopen(program, "w", encoding="utf-8"), other)
    yield made
    made.program.close()
    if made.other >= 0:
        os.close(made.other)


def test_what_a_terminal_does_not_take_at_once_is_left_for_the_thread_and_nothing_is_lost(pair: Pair) -> None:
    output = TerminalOutput(pair.program, lambda: None)
    output.open()
    assert not fcntl.fcntl(pair.program, fcntl.F_GETFL) & os.O_NONBLOCK, "the shell keeps a terminal that waits"
    text = "x" + "é…" * 5000  # however much is taken, some cut is within a character
    expected = ""
    rest = ""
    while not rest:
        rest = output.write_at_once(text)
        expected += text
    assert output.write_at_once("later") == "later", "what comes behind waits for what is before it"
    expected += "later"
    writer = threading.Thread(target=lambda: [output.write(each) for each in (rest, "later")])  # type: ignore[func-returns-value]
    writer.start()
    received = b""
    while len(received) < len(expected.encode()):
        received += os.read(pair.other, 65536)
    writer.join(HANG_SECONDS)
    assert received.decode() == expected
    assert output.write_at_once("again") == "", "when all is written, the next is written at once"
    assert os.read(pair.other, 100) == b"again"
    output.close()
    assert output.write_at_once("closed") == "closed"


def test_a_terminal_that_can_not_be_opened_anew_is_written_by_the_thread() -> None:
    near, far = socket.socketpair()  # as one of another user's: it is there, and opening it fails
    with near, far, near.makefile("w", encoding="utf-8") as file:
        output = TerminalOutput(file, lambda: None)
        output.open()
        assert output.write_at_once("frame") == "frame"
        output.write("frame")
        assert far.recv(100) == b"frame"


def test_the_end_of_a_terminal_is_told_once(pair: Pair) -> None:
    ends: list[str] = []
    output = TerminalOutput(pair.program, lambda: ends.append("end"))
    output.open()
    pair.hang_up()
    for _ in range(2):
        assert output.write_at_once("frame") == "frame"
        output.write("frame")
    assert ends == ["end"]
    output.close()


async def test_keys_come_one_by_one_and_a_lonely_escape_is_a_key(pair: Pair) -> None:
    keys: asyncio.Queue[str] = asyncio.Queue()
    ended = asyncio.Event()
    taken = terminal_input(pair, keys.put_nowait, ended.set)
    taken.begin()
    os.write(pair.other, b"a\x1b[B\xc3")
    assert [await keys.get() for _ in range(2)] == ["a", "down"]
    os.write(pair.other, b"\xa9\xff\x1b")
    assert [await keys.get() for _ in range(3)] == ["é", "replacement_character", "escape"]
    taken.end()
    os.write(pair.other, b"x")
    await asyncio.sleep(0)
    assert keys.empty(), "while nobody reads"
    taken.begin()
    assert await keys.get() == "x", "what was typed meanwhile is there afterwards"
    pair.hang_up()
    await asyncio.wait_for(ended.wait(), HANG_SECONDS)
    taken.end()


async def test_what_has_been_typed_is_read_before_reading_ends_and_what_comes_later_is_not(pair: Pair) -> None:
    keys: list[str] = []
    taken = terminal_input(pair, keys.append, lambda: None)
    taken.begin()
    for typed in (b"a\x1b[B\r", b"x"):
        os.write(pair.other, typed)
        assert is_readable(pair.program.fileno())
        taken.finish()
        assert keys == ["a", "down", "enter"]


def terminal_input(pair: Pair, take: Callable[[str], object], end: Callable[[], object]) -> TerminalInput:
    """Reads the terminal of a program, and hands over the names of keys."""
    return TerminalInput(
        pair.program.fileno(), lambda message: take(message.key) if isinstance(message, Key) else None, end
    )


def test_keys_typed_ahead_are_pressed_in_order_until_one_leaves_the_page() -> None:
    ahead, pressed = TypedAhead(), []

    def press(key: str, _character: str | None) -> None:
        pressed.append(key)
        if key == "q":
            ahead.begin()

    ahead.begin()
    ahead.add("c", "c", is_unread=True)
    ahead.add("b", "b")
    ahead.add("q", "q", is_unread=True)
    ahead.add("d", "d", is_unread=True)
    ahead.deliver(press, [("e", "e")])
    assert pressed == ["b", "c", "q"]
    ahead.deliver(press)
    assert pressed == ["b", "c", "q", "d", "e"]
    assert not ahead.is_collecting
    ahead.begin()
    for _ in range(1000):
        ahead.add("x", "x")
    ahead.deliver(press)
    assert 5 < len(pressed) < 1000, "who types without end fills no memory"
