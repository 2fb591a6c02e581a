"""The painter: after what it writes, the screen is what it should be, and it writes no more than that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem

from neurontools.tui.painter import sgr, spans, update
from neurontools.views.drawing.line import Line, fit, plain
from tests.harness.terminal_screen import TerminalScreen

WIDTH = 30
RUNS = st.lists(
    st.tuples(st.text("ab█▌ 宽", max_size=9), st.sampled_from(["text", "busy", "text+selected"])), max_size=8
)
LINES = st.lists(RUNS.map(lambda runs: fit(tuple(runs), WIDTH)), min_size=3, max_size=3)


def cells(line: Line) -> list[tuple[str, str]]:
    return [(character, style) for text, style in line for character in text]


@given(LINES, LINES)
def test_the_screen_becomes_the_new_one(before: list[Line], lines: list[Line]) -> None:
    narrow = [tuple((text.replace("宽", "w"), style) for text, style in line) for line in before]
    wanted = [tuple((text.replace("宽", "w"), style) for text, style in line) for line in lines]
    narrow = [fit(line, WIDTH) for line in narrow]
    wanted = [fit(line, WIDTH) for line in wanted]
    screen = TerminalScreen(WIDTH, 3)
    for row, line in enumerate(narrow, 1):
        screen.feed(f"\x1b[{row};1H" + "".join(text for text, _ in line))
    screen.feed(update(wanted, narrow, "dark", ColorSystem.TRUECOLOR, WIDTH))
    assert screen.text == "\n".join(plain(line) for line in wanted)


@given(LINES, LINES)
def test_every_cell_that_differs_is_in_a_span(before: list[Line], lines: list[Line]) -> None:
    for line, old in zip(lines, before, strict=True):
        found = spans(line, old, WIDTH)
        assert found == sorted(found)
        if any("宽" in text for text, _ in (*line, *old)):
            continue
        inside = {cell for left, right in found for cell in range(left, right)}
        for cell, (one, other) in enumerate(zip(cells(line), cells(old), strict=True)):
            assert one == other or cell in inside


def test_nothing_is_written_when_nothing_has_changed() -> None:
    line = fit((("same", "text"),), WIDTH)
    assert update([line], [line], "dark", ColorSystem.TRUECOLOR, WIDTH) == ""


def test_one_figure_costs_some_bytes() -> None:
    before, after = (fit(((f"[{figure}]" + "█" * 20, "busy"),), WIDTH) for figure in ("91.2", "91.3"))
    assert len(update([after], [before], "dark", ColorSystem.TRUECOLOR, WIDTH)) < 60


def test_monochrome_has_no_colours() -> None:
    for name in ("text", "busy", "title", "bad", "text+selected", "track"):
        for code in sgr("mono", name, ColorSystem.TRUECOLOR).removeprefix("\x1b[").removesuffix("m").split(";"):
            assert int(code) < 30
