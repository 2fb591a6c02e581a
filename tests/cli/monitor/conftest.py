"""neuron-monitor, and a configuration with short periods."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import python_process
from tests.harness.monitor_process import COMMAND, FAST, Start


@pytest.fixture
def monitor(clean_environment: dict[str, str]) -> Iterator[Start]:
    """Starts the command; what still runs at the end of the test is ended."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = clean_environment | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        running.append(
            python_process.popen(
                [*COMMAND, *arguments],
                loaded=python_process.MONITORS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=clean | environment,
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def fast(tmp_path: Path) -> str:
    file = tmp_path / "fast.json"
    file.write_text(json.dumps(FAST), "utf-8")
    return str(file)
