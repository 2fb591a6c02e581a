"""neuron-run over a script of a test, with a simulated host and no daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness import python_process
from tests.harness.paths import ROOT


def neuron_run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs neuron-run in a directory, where no daemon is, with a compile cache of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XLA_"))}
    return python_process.run(
        [sys.executable, "-m", "neurontools.cli.run.command", *arguments],
        loaded=python_process.TORCH,
        text=True,
        cwd=directory,
        env={
            **kept,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
            "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
            "XDG_RUNTIME_DIR": str(directory),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )


def summary_of(directory: Path, script: str, *options: str, **environment: str) -> dict[str, Any]:
    """What neuron-run tells of a script that ends well, which is written to script.py."""
    (directory / "script.py").write_text(script)
    where = ("-q", "--simulate", "trn1.2xlarge", "--summary-json", "out.json")
    run = neuron_run(directory, *where, *options, "script.py", **environment)
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads((directory / "out.json").read_text())
    return document
