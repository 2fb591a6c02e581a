"""Our commands as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.harness.waiting import HANG_SECONDS


class RunCommand(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


def runs(program: Path, base: Mapping[str, str]) -> RunCommand:
    """What runs a program, a Python script, in this environment and what a call adds to it."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), *arguments],
            capture_output=True,
            encoding="utf-8",
            env={**base, **environment},
            timeout=HANG_SECONDS,
            check=False,
        )

    return run
