"""Estimates held against published trainings: what docs/estimate.md says of their errors is so."""

from __future__ import annotations

import re
import subprocess
import sys

from neurontools.estimate import prior
from tests.harness.paths import ROOT


def test_the_errors_are_those_of_the_documents() -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "estimate-errors")], capture_output=True, text=True, check=True
    ).stdout
    mean = re.search(r"mean error of the 6 held out \| \| \| ([\d.]+)% \| \| ([\d.]+)%", printed)
    assert mean is not None
    assert max(float(mean[1]), float(mean[2])) <= 10
    held = re.search(r"\| held \| \| \| (\d) of (\d)", printed)
    assert held is not None
    assert (int(held[1]), int(held[2])) == (prior.FAMILIES_HELD, prior.FAMILIES)
    document = (ROOT / "docs" / "estimate.md").read_text()
    assert printed.strip() in document
