"""The first frame: what the terminal answers about its ground, and the sequences of a line."""

from __future__ import annotations

import pytest

from neurontools.cli.top.first_frame import ansi, is_light
from neurontools.cli.top.theme import chosen_theme


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
    assert is_light(reply) is expected


def test_a_flag_goes_before_no_color_and_that_before_the_settings() -> None:
    assert chosen_theme("auto", {}, {}) == "dark"
    assert chosen_theme("auto", {}, {"COLORFGBG": "0;15"}) == "light"
    assert chosen_theme("light", {}, {"NO_COLOR": "1"}) == "mono"
    assert chosen_theme("light", {"theme": "light"}, {"NO_COLOR": "1"}) == "light"
    assert chosen_theme("dark", {"color": "never"}, {}) == "mono"
    assert chosen_theme("dark", {"color": "always"}, {"NO_COLOR": "1"}) == "dark"


def test_mono_has_attributes_alone() -> None:
    assert ansi((("a", "strong"), ("b", "text")), "mono") == "\x1b[0;1ma\x1b[0mb"
    assert ansi((("a", "busy"),), "dark") == "\x1b[0;38;2;63;185;80ma"
