"""neuron-run --top: neuron-top has the terminal, the script's output comes when it has left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.neuron_run import TRAINING, OnTerminal, environment
from tests.harness.paths import ROOT
from tests.harness.waiting import HANG_SECONDS, wait_until

pytest.importorskip("torch")
pytest.importorskip("textual")


@pytest.fixture
def commands(tmp_path: Path) -> str:
    """A PATH on which neuron-top is that of this tree, where the interpreter has none beside it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "neuron-top").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/scripts/neuron-top "$@"\n')
    (directory / "neuron-top").chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


def test_the_output_follows_when_the_script_has_ended(tmp_path: Path, commands: str) -> None:
    (tmp_path / "script.py").write_text("print('from the script', flush=True)\n" + TRAINING)
    run = OnTerminal(tmp_path, 120, "--simulate", "trn1.2xlarge", "--top", "script.py", PATH=commands)
    try:
        run.read_until("trn1.2xlarge")
        wait_until(lambda: (tmp_path / "alive0").exists())
        (tmp_path / "stop").touch()
        exit_code, written = run.end()
    finally:
        run.close()
    assert exit_code == 0
    before, _, after = written.rpartition("\x1b[?1049l")  # neuron-top has left the alternate screen
    assert "from the script" not in before
    assert "from the script\r\n" in after
    assert "steps        " in after


def test_whoever_leaves_neuron_top_sees_the_output_as_it_comes(tmp_path: Path, commands: str) -> None:
    (tmp_path / "script.py").write_text("print('from the script', flush=True)\n" + TRAINING)
    run = OnTerminal(tmp_path, 120, "--simulate", "trn1.2xlarge", "--top", "script.py", PATH=commands)
    try:
        run.read_until("trn1.2xlarge")
        wait_until(lambda: (tmp_path / "alive0").exists())
        run.type("q")
        run.read_until("from the script")
        assert run.process.poll() is None
        (tmp_path / "stop").touch()
        exit_code, written = run.end()
    finally:
        run.close()
    assert exit_code == 0
    assert written.count("from the script") == 1


OUTPUT_BYTES = 400_000
"""So many that not all fit into the pipe, and some have been kept when their writer ends."""

BACKLOG = f"""
import os, resource, signal, subprocess, sys
from neurontools.cli.run.top import Backlog
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = subprocess.Popen([sys.executable, "-c", "print('x' * {OUTPUT_BYTES - 1})"], stdout=subprocess.PIPE)
backlog = Backlog(writer.stdout)
assert writer.wait() == 0
backlog.finish()
"""


@pytest.mark.parametrize("limit", [2 * OUTPUT_BYTES, 4096, 0])
def test_output_for_which_there_is_no_room_is_lost_and_counted(tmp_path: Path, limit: int) -> None:
    """The limit of file sizes stands for the full disk: the write fails half-way, and the script must not notice."""
    done = subprocess.run(
        [sys.executable, "-c", BACKLOG, str(limit)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0
    lost = OUTPUT_BYTES - len(done.stdout)
    assert done.stdout.replace("x", "") in ("", "\n")
    if limit > OUTPUT_BYTES:
        assert (lost, done.stderr) == (0, "")
    else:  # what came while it was kept; the rest was shown as it came
        assert lost > 0
        assert done.stderr == f"neuron-run: {lost} bytes of output were lost; there was no room to keep them\n"
