"""A rank that is held up on purpose, in a real run of four: the daemon names it, and what takes it longer."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.harness import python_process
from tests.harness.paths import ROOT

pytest.importorskip("torch")


@pytest.mark.slow
def test_a_rank_that_is_held_up_is_named_with_the_part_of_its_steps_that_takes_longer(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURON")}
    command = [sys.executable, str(ROOT / "scripts" / "slow-rank-trials"), "--trials", "1", "--clean", "0"]
    ended = python_process.run(
        [*command, "--until-named", "--steps", "2000"],  # on a busy machine the first of them tell nothing
        loaded=python_process.TORCH,
        text=True,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"},
    )
    told = re.search(r"^forward +rank (\d): (.*)$", ended.stdout, re.MULTILINE)
    assert told is not None, ended.stdout + ended.stderr
    assert f"({told[1]}, 'host')" in told[2]
