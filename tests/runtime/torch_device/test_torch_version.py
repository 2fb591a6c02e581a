"""A torch that the device is not made for: said in a line, and tried."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from neurontools.runtime.launch.torch_version import MADE_FOR

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, torch
if len(sys.argv) > 1: torch.__version__ = sys.argv[1]
from neurontools.runtime.launch.install import install
install(); install()
print(torch.ones(2, device="xla").sum().item())
"""


TOLD = (
    "neurontools: torch 2.14.0a0 is not the torch 2.13 that the device is made for; should something fail, "
    "install torch==2.13.*\n"
)


@pytest.mark.parametrize(("version", "told"), [([], ""), (["2.14.0a0"], TOLD)])
def test_another_torch_is_told_in_a_line_and_tried(version: list[str], told: str, tmp_path: Path) -> None:
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("NEURON")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *version],
        capture_output=True,
        text=True,
        check=False,
        env=cleared | {"XDG_RUNTIME_DIR": str(tmp_path), "NEURON_RT_NUM_CORES": "1"},
    )
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if "install torch" in line)
    assert (done.returncode, done.stdout, said) == (0, "2.0\n", told)


def test_the_bound_is_the_next_minor_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    major, minor = map(int, MADE_FOR.split("."))
    assert f"torch>={MADE_FOR},<{major}.{minor + 1}" in project["optional-dependencies"]["runtime"]
    assert f"torch=={MADE_FOR}.0" in (ROOT / "constraints.txt").read_text("utf-8").split()
