"""The table of names in docs/device.md is what the script counts with the libraries as they are pinned here."""

from __future__ import annotations

import subprocess

import pytest

from tests.harness.framework_script import PYTHON
from tests.harness.paths import ROOT


@pytest.mark.long
def test_the_documented_count_of_names_is_what_the_script_counts() -> None:
    if not PYTHON.exists():
        pytest.skip("other people's frameworks are not installed; run make frameworks")
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "scripts/torch_xla_names")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    table, _, missing = done.stdout.partition("\n\n")
    page = (ROOT / "docs/device.md").read_text("utf-8")
    for line in table.splitlines():
        assert line in page
    for name in missing.strip().removeprefix("Not there: ").split(", "):
        assert name in page
