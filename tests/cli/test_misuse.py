"""What can't be meant is told in one line, with its exit code, before anything is done."""

from __future__ import annotations

import os
import shlex
from itertools import takewhile
from pathlib import Path

import pytest

from tests.harness.command import calls
from tests.harness.running_daemon import RunningDaemon

# Command lines, with the exit code and what is told of them. @ is the socket of a daemon; variables come first.
GOLDEN = Path(__file__).parent / "golden/misuse.txt"


def read_rows() -> list[list[str]]:
    return [line.split(" → ") for line in GOLDEN.read_text("utf-8").splitlines()]


def unescaped(line: str) -> str:
    return line.encode().decode("unicode_escape")


@pytest.mark.parametrize(("line", "told"), read_rows(), ids=[line for line, _ in read_rows()])
def test_what_cannot_be_meant_is_one_line(
    shared_daemon: RunningDaemon,
    clean_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    told: str,
) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    monkeypatch.chdir(tmp_path)
    words = [shared_daemon.socket if word == "@" else word for word in shlex.split(unescaped(line))]
    variables = dict(word.split("=") for word in takewhile(lambda word: word[0].isupper(), words))
    command, *arguments = words[len(variables) :]
    done = calls(command, clean_environment)(*arguments, **variables)
    assert done.stdout == ""
    assert done.stderr.startswith(f"{command}: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
    assert shared_daemon.snapshot().injected_faults == ()
    text = done.stderr.removeprefix(f"{command}: ").rstrip("\n")
    found = f"{done.returncode}: {text.replace(shared_daemon.socket, '@').replace(clean_environment['HOME'], 'HOME')}"
    if os.environ.get("UPDATE_GOLDEN"):
        rows = [[row, found if row == line else shown] for row, shown in read_rows()]
        GOLDEN.write_text("".join(f"{row} → {shown}\n" for row, shown in rows), "utf-8")
    else:
        assert found == told
