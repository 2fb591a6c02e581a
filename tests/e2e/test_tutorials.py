"""The tutorials of docs/tutorials: a shell runs their commands in order, and each prints what the page shows.

On a page, … stands for any text in a line, and a line that has only … for any lines. The widths of columns may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.harness.paths import ROOT
from tests.harness.waiting import is_readable, wait_until

PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READS_ONLY = ("neuron-ls ", "neuron-top ", "neuron-fault list")
"""A command that changes nothing is repeated until it prints what the page shows, as a user waits for a start."""


class Shell:
    """A bash in a private directory, with background processes that end with it."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "output"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURON")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        (directory / "work").mkdir()
        (directory / "work/examples").symlink_to(ROOT / "examples")
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=directory / "work",
            env={**kept, "PATH": path, "XDG_RUNTIME_DIR": str(directory), "COLUMNS": "120"},
            start_new_session=True,
        )
        self._answer("trap 'kill $(jobs -p)' EXIT")  # also if the tests are killed

    def run(self, command: str) -> str:
        """Runs a command to its end, or starts it if it ends with &. Returns both streams of output."""
        output = shlex.quote(str(self._output))
        if command.endswith("&"):
            return self._answer(f"{command[:-1]} >{output}.background 2>&1 </dev/null &")
        return self._answer(f"{{ {command}\n}} >{output} 2>&1 </dev/null")

    def close(self) -> None:
        try:
            self._answer("kill $(jobs -p); wait")
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output.write_text("")
        self._process.stdin.write(f"{line}\necho ended\n")
        self._process.stdin.flush()
        assert is_readable(self._process.stdout.fileno()), f"hangs: {line}"
        assert self._process.stdout.readline() == "ended\n", f"ended the shell: {line}"
        return self._output.read_text("utf-8")


def steps_of(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page, without their comments, each with the output that follows it."""
    for block in BLOCK.findall(page):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield command.partition("  #")[0].rstrip(), output


def squeezed(text: str) -> str:
    return "".join(re.sub(r"([ ─-])\1+", r"\1", line).rstrip() + "\n" for line in text.splitlines())


def pattern_of(shown: str) -> re.Pattern[str]:
    lines = squeezed(shown).splitlines()
    return re.compile("".join(map(line_pattern, lines)))


def line_pattern(line: str) -> str:
    return "(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_commands_of_a_tutorial_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    steps = list(steps_of(page.read_text("utf-8")))
    assert len(steps) >= 3
    shell = Shell(tmp_path)
    seen: set[str] = set()

    def prints_it(command: str, shown: str) -> bool:
        printed = shell.run(command)
        if printed not in seen:
            seen.add(printed)
            print(f"$ {command}\n{printed}")  # pytest shows it if the test fails
        return pattern_of(shown).fullmatch(squeezed(printed)) is not None

    try:
        for command, shown in steps:
            if f"{command} ".startswith(READS_ONLY):
                wait_until(partial(prints_it, command, shown))
            else:
                assert prints_it(command, shown), f"{command}: the page shows\n{shown}"
    finally:
        shell.close()
