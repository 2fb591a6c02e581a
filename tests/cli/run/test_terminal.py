"""The line of progress: on a terminal, below the script's output, and never in its way."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cli.run.progress import Progress
from neurontools.cli.run.terminal import Terminal
from tests.harness.neuron_run import TRAINING, OnTerminal, Started
from tests.harness.written_screen import screen

FRAME = re.compile(
    r"\d+:\d\d  step [\d,]+  [\d.]+ steps/s  [\d.]+ [KM]?FLOPS  \d graphs? compiled  HBM [\d.]+ K?B(?=\r\x1b\[K|\r?$)"
)
Start = Callable[..., OnTerminal]


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[Start]:
    started: list[OnTerminal] = []

    def start(columns: int, *arguments: str, **changes: str) -> OnTerminal:
        started.append(OnTerminal(tmp_path, columns, *arguments, **changes))
        return started[-1]

    (tmp_path / "script.py").write_text(TRAINING)
    yield start
    for each in started:
        each.close()


def frames(written: str) -> list[str]:
    """All lines of progress that were drawn."""
    return [part for part in re.split(r"\r\x1b\[K|\r?\n", written) if re.match(r"\d+:\d\d  ", part)]


def test_the_line_is_drawn_anew_and_gone_at_the_end(on_terminal: Start, tmp_path: Path) -> None:
    run = on_terminal(120, "script.py")
    run.read_until(FRAME.pattern)
    drawn = len(run.written)
    run.read_until(rf"(?s).{{{drawn}}}.*?{FRAME.pattern}")
    (tmp_path / "stop").touch()
    exit_code, written = run.end()
    assert exit_code == 0
    assert re.fullmatch(r"\d+:\d\d  starting", frames(written)[0])
    shown = screen(written)
    assert not [line for line in shown if re.match(r"\d+:\d\d  ", line)]
    assert shown[0].startswith("neurontools: no monitor daemon")
    assert shown[1:4:2] == ["", f"wall time    {shown[3][13:]}"]


def test_a_narrow_terminal_has_as_much_of_the_line_as_fits(on_terminal: Start, tmp_path: Path) -> None:
    run = on_terminal(24, "script.py")
    run.read_until(r"\d+:\d\d  step [\d,]+\r")
    drawn = len(run.written)
    run.resize(120)
    run.read_until(rf"(?s).{{{drawn}}}.*?{FRAME.pattern}")
    narrow = frames(run.written[:drawn])
    assert max(map(len, narrow)) < 24
    (tmp_path / "stop").touch()
    assert run.end()[0] == 0


def test_the_script_has_a_terminal_too_and_its_lines_stay_whole(on_terminal: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(), flush=True)\n"
        "for number in range(200): print('line', number, file=sys.stderr if number % 3 else sys.stdout, flush=True)\n"
        "print('50%', end='', flush=True)\n"
        "print('\\r100%', flush=True)\n" + TRAINING
    )
    run = on_terminal(120, "script.py")
    run.read_until(FRAME.pattern)
    (tmp_path / "stop").touch()
    exit_code, written = run.end()
    assert exit_code == 0
    shown = screen(written)
    assert shown[1] == "True True os.terminal_size(columns=120, lines=24)"
    assert shown[2:203] == [*(f"line {number}" for number in range(200)), "100%"]


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_obeys_nothing_has_no_line(on_terminal: Start, tmp_path: Path, term: str) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.stdout.isatty())")
    exit_code, written = on_terminal(120, "script.py", TERM=term).end()
    assert exit_code == 0
    assert "\x1b" not in written
    assert "True\r\n" in written


def test_a_pipe_has_no_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAINING)
    run = Started(tmp_path, "script.py")
    run.pid_of(0)
    run.stop_training()
    exit_code, output, errors = run.end()
    assert (exit_code, output) == (0, "")
    assert "\r" not in errors
    assert "\x1b" not in errors
    assert "starting" not in errors


STATE = {"wall_seconds": 1.0, "steps_total": 0, "flop_total": 0, "executions_total": 3, "graphs_compiled_total": 2}


def test_parts_of_the_line() -> None:
    progress = Progress()
    state = {**STATE, "hbm_bytes": 1536}
    assert progress.line(None, 3.9, 80) == "0:03  starting"
    assert progress.line(state, 62.0, 80) == "1:02  3 executions  2 graphs compiled  HBM 1.5 KB"
    later = {**state, "wall_seconds": 3.0, "steps_total": 5000, "flop_total": 4_000_000, "graphs_compiled_total": 1}
    full = "1:01:05  step 5,000  2500.0 steps/s  2.0 MFLOPS  1 graph compiled  HBM 1.5 KB"
    assert progress.line(later, 3665.0, 120) == full
    assert progress.line(later, 3665.0, len(full) + 1) == full
    assert progress.line(later, 3665.0, len(full)) == full.removesuffix("  HBM 1.5 KB")
    assert progress.line(later, 3665.0, 9) == "1:01:05"
    assert progress.line(later, 3665.0, 7) == ""


@given(
    st.lists(
        st.one_of(
            st.text("ab\n", max_size=6).map(lambda t: ("write", t)),
            st.text("xy", max_size=4).map(lambda t: ("show", t)),
        )
    )
)
def test_output_and_line_never_mix(events: list[tuple[str, str]]) -> None:
    """Whatever comes in between: without the line the screen is that of the output alone, with it one line more."""
    readable, writable = os.pipe()
    try:
        terminal, plain, line = Terminal(writable), "", ""
        written = ""
        for kind, text in events:
            if kind == "write":
                terminal.write(text.replace("\n", "\r\n").encode())
                plain += text.replace("\n", "\r\n")
            else:
                terminal.show(text)
                line = text
            os.write(writable, b"\0")
            while not written.endswith("\0"):
                written += os.read(readable, 4096).decode()
            written = written[:-1]
            shown = screen(written)
            expected = screen(plain)
            if not plain or plain.endswith("\n"):
                expected[-1] = line
            assert shown == expected
    finally:
        os.close(readable)
        os.close(writable)


def test_a_terminal_that_went_away_loses_what_is_written() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    terminal = Terminal(writable)
    terminal.write(b"output\n")
    terminal.show("line")
    os.close(writable)
    terminal.show("")
