"""What reaches a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.text.terminal import cell_width, cut, visible

ANY_TEXT = st.text(st.characters(codec=None, categories=None) | st.characters(max_codepoint=0xA0))
ANY_CODE_POINT = st.integers(min_value=0, max_value=0x10FFFF).map(chr)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("python train.py --lr 1e-4", "python train.py --lr 1e-4"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("\x00\t\n\r\x7f", r"\x00\x09\x0a\x0d\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("\u2066\u2069\u200f\u061c", r"\u2066\u2069\u200f\u061c"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udc80", r"\udc80"),
        ("größe 模型 \u00a0 🚀", "größe 模型 \u00a0 🚀"),
        (r"C:\x1b", r"C:\x1b"),
    ],
)
def test_visible(raw: str, shown: str) -> None:
    assert visible(raw) == shown


@given(ANY_TEXT)
def test_visible_lets_nothing_raw_through(text: str) -> None:
    shown = visible(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    # The explicit direction controls; Unicode classes the three marks with the letters.
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {unicodedata.bidirectional(character) for character in shown} & directions
    shown.encode()  # a lone surrogate would fail
    assert visible(shown) == shown


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("python train.py", 15, "python train.py"),
        ("python train.py", 14, "python trai..."),
        ("python", 3, "..."),
        ("python", 2, ".."),
        ("python", 0, ""),
        ("python", -1, ""),
        ("", 0, ""),
    ],
)
def test_cut(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_cut_fits_and_keeps_the_start(text: str, width: int) -> None:
    result = cut(text, width)
    assert len(result) <= width
    assert result == text or (result.endswith("..."[:width]) and text.startswith(result[: max(width - 3, 0)]))


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", 0),
        ("train.py", 8),
        ("größe", 5),
        ("e\u0301", 1),
        ("模型", 4),
        ("ｗ", 2),
        ("🚀", 2),
        ("\u1112\u1161\u11ab", 2),
        ("a\u200bb", 2),
        ("a\u00adb", 3),
        ("█▌", 2),
        ("\x1b", 0),
    ],
)
def test_cell_width(text: str, cells: int) -> None:
    assert cell_width(text) == cells


@given(st.text(), st.text())
def test_cell_width_adds_up(left: str, right: str) -> None:
    assert cell_width(left + right) == cell_width(left) + cell_width(right)


@given(ANY_CODE_POINT)
def test_no_character_is_wider_than_two_cells(character: str) -> None:
    assert cell_width(character) in (0, 1, 2)
