"""What `import torch` costs where neurontools is installed and nobody asked for its device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def modules_of_ours(**environment: str) -> set[str]:
    code = "import sys, torch; print(*(name for name in sys.modules if name.split('.')[0] == 'neurontools'))"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "TORCHELASTIC"))}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=inherited | environment
    )
    return set(told.stdout.split())


def test_import_torch_stays_as_it_is() -> None:
    assert modules_of_ours() <= {"neurontools", "neurontools.startup", "neurontools.startup.torch_autoload"}


def test_an_opt_in_brings_the_runtime() -> None:
    assert "neurontools.runtime.launch.import_hook" in modules_of_ours(NEURONTOOLS_RUNTIME="1")
