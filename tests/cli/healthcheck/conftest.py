from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.healthcheck import HEALTHCHECK, RunHealthcheck
from tests.harness.waiting import HANG_SECONDS


@pytest.fixture
def healthcheck(clean_environment: dict[str, str]) -> RunHealthcheck:
    """Runs the command as a process of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(HEALTHCHECK), *arguments],
            capture_output=True,
            encoding="utf-8",
            env=clean_environment | environment,
            timeout=HANG_SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def empty_host(tmp_path: Path) -> dict[str, str]:
    """The environment of a host without a driver."""
    for name in ("sys", "proc", "dev"):
        (tmp_path / name).mkdir()
    return {f"NEURONTOOLS_{name.upper()}_ROOT": str(tmp_path / name) for name in ("sysfs", "proc", "dev")} | {
        "NEURONTOOLS_SYSFS_ROOT": str(tmp_path / "sys")
    }
