"""Programs of others, which `make consumers` installs."""

from __future__ import annotations

import pytest

from tests.harness.paths import ROOT


def consumer(program: str) -> str:
    """The path of a program of that environment; the test is skipped where there is none."""
    path = ROOT / ".venv/consumers/bin" / program
    if not path.exists():
        pytest.skip("other people's programs are not installed; make consumers does it")
    return str(path)
