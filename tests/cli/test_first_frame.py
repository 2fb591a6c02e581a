"""The first frame: what the terminal answers about its ground, and the sequences of a line."""

from __future__ import annotations

import os
import pty
import signal
import sys

import pytest

from neurontools.cli.top.first_frame import is_light_background, line_ansi
from neurontools.cli.top.options import chosen_theme


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62c", True),
        (b"\x1b]11;rgb:fd/f6/e3\x07\x1b[?62c", True),
        (b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62c", False),
        (b"\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\", False),
        (b"\x1b[?62c", None),
        (b"", None),
        (b"\x1b]11;rgb:pink\x1b\\", None),
        (b"\x1b]11;rgb:12/34\x1b\\", None),
    ],
)
def test_the_ground_of_the_terminal(reply: bytes, expected: bool | None) -> None:
    assert is_light_background(reply) is expected


# SIGHUP is ignored, as the shell alone is told that a window was closed.
PAINTING = """
import os, signal, sys
from neurontools.cli.top.first_frame import FirstFrameTerminal
from neurontools.views.drawing.lines import TextPage
signal.signal(signal.SIGHUP, signal.SIG_IGN)
terminal = FirstFrameTerminal()
ready, go = map(int, sys.argv[1:])
os.write(ready, b"x")
os.read(go, 1)
terminal.paint(TextPage(), "dark", ask_background=True)
"""


def test_a_terminal_that_goes_while_it_is_painted_ends_the_command_as_a_hang_up() -> None:
    ready, tell_ready = os.pipe()
    wait_go, go = os.pipe()
    pid, other = pty.fork()
    if not pid:
        for each in (tell_ready, wait_go):
            os.set_inheritable(each, True)
        os.execv(sys.executable, [sys.executable, "-c", PAINTING, str(tell_ready), str(wait_go)])
    assert os.read(ready, 1) == b"x"
    os.close(other)
    os.write(go, b"x")
    _, status = os.waitpid(pid, 0)
    for each in (ready, tell_ready, wait_go, go):
        os.close(each)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP


def test_a_flag_goes_before_no_color_and_that_before_the_settings() -> None:
    assert chosen_theme("auto", {}, {}) == "dark"
    assert chosen_theme("auto", {}, {"COLORFGBG": "0;15"}) == "light"
    assert chosen_theme("light", {}, {"NO_COLOR": "1"}) == "mono"
    assert chosen_theme("light", {"theme": "light"}, {"NO_COLOR": "1"}) == "light"
    assert chosen_theme("dark", {"color": "never"}, {}) == "mono"
    assert chosen_theme("dark", {"color": "always"}, {"NO_COLOR": "1"}) == "dark"


def test_mono_has_attributes_alone() -> None:
    assert line_ansi((("a", "strong"), ("b", "text")), "mono") == "\x1b[0;1ma\x1b[0mb"
    assert line_ansi((("a", "busy"),), "dark") == "\x1b[0;38;2;63;185;80ma"
