"""neuron-run on a terminal: the line of progress below the script's output, and neuron-top in its place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cli.run.terminal import ProgressLine, ProgressTerminal
from tests.harness.neuron_run import TRAINING, OnTerminal, environment
from tests.harness.paths import ROOT
from tests.harness.terminal_screen import screen
from tests.harness.waiting import run_to_end, wait_until

FRAME = re.compile(
    r"\d+:\d\d  step [\d,]+  [\d.]+ steps/s  [\d.]+ [KM]?FLOPS  \d graphs? compiled  HBM [\d.]+ K?i?B(?=\r\x1b\[K|\r?$)"
)
Start = Callable[..., OnTerminal]


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "script.py").write_text(TRAINING)
    with ExitStack() as stack:
        yield lambda *arguments, **changes: stack.enter_context(closing(OnTerminal(tmp_path, *arguments, **changes)))


def frames(written: str) -> list[str]:
    """All lines of progress that were drawn."""
    return [part for part in re.split(r"\r\x1b\[K|\r?\n", written) if re.match(r"\d+:\d\d  ", part)]


def test_the_line_is_drawn_anew_as_much_as_fits_and_gone_at_the_end(on_terminal: Start, tmp_path: Path) -> None:
    run = on_terminal(24, "script.py")
    run.read_until(r"\d+:\d\d  step [\d,]+\r")
    drawn = len(run.written)
    run.resize(120)
    run.read_until(rf"(?s).{{{drawn}}}.*?{FRAME.pattern}")
    assert max(map(len, frames(run.written[:drawn]))) < 24
    (tmp_path / "stop").touch()
    exit_code, written = run.end()
    assert exit_code == 0
    assert re.fullmatch(r"\d+:\d\d  starting", frames(written)[0])
    shown = screen(written)
    assert not [line for line in shown if re.match(r"\d+:\d\d  ", line)]
    assert shown[0].startswith("neurontools: no monitor daemon")
    assert shown[1:4:2] == ["", f"wall time    {shown[3][13:]}"]


@pytest.mark.slow
def test_the_script_and_its_debugger_have_a_terminal_and_whole_lines(on_terminal: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(), flush=True)\n"
        "for number in range(200): print('line', number, file=sys.stderr if number % 3 else sys.stdout, flush=True)\n"
        "print('50%', end='', flush=True)\n"
        "print('\\r100%', flush=True)\n"
        "answer = 6 * 7\n"
        "breakpoint()\n" + TRAINING
    )
    run = on_terminal(120, "script.py")
    for prompt, typed in ((r"\(Pdb\) ", "p answer * 100\n"), (r"4200\r\n(.|\n)*\(Pdb\) ", "c\n")):
        run.read_until(prompt)
        run.type(typed)
    run.read_until(FRAME.pattern)
    (tmp_path / "stop").touch()
    exit_code, written = run.end()
    assert exit_code == 0
    shown = screen(written)
    assert shown[1] == "True True os.terminal_size(columns=120, lines=24)"
    assert shown[2:203] == [*(f"line {number}" for number in range(200)), "100%"]


@pytest.mark.slow
@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_obeys_nothing_has_no_line(on_terminal: Start, tmp_path: Path, term: str) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.stdout.isatty())")
    exit_code, written = on_terminal(120, "script.py", TERM=term).end()
    assert exit_code == 0
    assert "\x1b" not in written
    assert "True\r\n" in written


STATE = {"wall_seconds": 1.0, "steps_total": 0, "flop_total": 0, "executions_total": 3, "graphs_compiled_total": 2}


def test_parts_of_the_line() -> None:
    progress = ProgressLine()
    state = {**STATE, "hbm_bytes": 1536}
    assert progress.line(None, 3.9, 80) == "0:03  starting"
    assert progress.line(state, 62.0, 80) == "1:02  3 executions  2 graphs compiled  HBM 1.5 KiB"
    later = {**state, "wall_seconds": 3.0, "steps_total": 5000, "flop_total": 4_000_000, "graphs_compiled_total": 1}
    full = "1:01:05  step 5,000  2500.0 steps/s  2.0 MFLOPS  1 graph compiled  HBM 1.5 KiB"
    assert progress.line(later, 3665.0, 120) == full
    assert progress.line(later, 3665.0, len(full) + 1) == full
    assert progress.line(later, 3665.0, len(full)) == full.removesuffix("  HBM 1.5 KiB")
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
        terminal, plain, line = ProgressTerminal(writable), "", ""
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
    terminal = ProgressTerminal(writable)
    terminal.write(b"output\n")
    terminal.show("line")
    os.close(writable)
    terminal.show("")


@pytest.fixture
def commands(tmp_path: Path) -> str:
    """A PATH on which neuron-top is that of this tree, where the interpreter has none beside it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "neuron-top").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/scripts/neuron-top "$@"\n')
    (directory / "neuron-top").chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


@pytest.mark.parametrize("leaves", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_output_follows_when_neuron_top_has_left(
    on_terminal: Start, tmp_path: Path, commands: str, leaves: bool
) -> None:
    """Because somebody leaves it, or because the script has ended."""
    pytest.importorskip("textual")
    (tmp_path / "script.py").write_text("print('from the script', flush=True)\n" + TRAINING)
    run = on_terminal(120, "--simulate", "trn1.2xlarge", "--top", "script.py", PATH=commands)
    run.read_until("trn1.2xlarge")
    wait_until(lambda: (tmp_path / "alive0").exists())
    if leaves:
        run.type("q")
        run.read_until("from the script")
        assert run.process.poll() is None
    (tmp_path / "stop").touch()
    exit_code, written = run.end()
    assert exit_code == 0
    before, _, after = written.rpartition("\x1b[?1049l")  # neuron-top has left the alternate screen
    assert "from the script" not in before
    assert after.count("from the script\r\n") == 1
    assert "steps        " in after


OUTPUT_BYTES = 400_000
"""So many that not all fit into the pipe, and some have been kept when their writer ends."""

BACKLOG = f"""
import os, resource, signal, subprocess, sys
from neurontools.cli.run.terminal import OutputBacklog
limit = int(sys.argv[1])
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = subprocess.Popen([sys.executable, "-c", "print('x' * {OUTPUT_BYTES - 1})"], stdout=subprocess.PIPE)
backlog = OutputBacklog(writer.stdout)
assert writer.wait() == 0
backlog.finish()
"""


@pytest.mark.parametrize("limit", [2 * OUTPUT_BYTES, 4096, 0])
def test_output_for_which_there_is_no_room_is_lost_and_counted(tmp_path: Path, limit: int) -> None:
    """The limit of file sizes stands for the full disk: the write fails half-way, and the script must not notice."""
    done = run_to_end([sys.executable, "-c", BACKLOG, str(limit)], env=environment(tmp_path))
    assert done.returncode == 0
    lost = OUTPUT_BYTES - len(done.stdout)
    assert done.stdout.replace("x", "") in ("", "\n")
    if limit > OUTPUT_BYTES:
        assert (lost, done.stderr) == (0, "")
    else:  # what came while it was kept; the rest was shown as it came
        assert lost > 0
        assert done.stderr == f"neuron-run: {lost} bytes of output were lost; there was no room to keep them\n"
