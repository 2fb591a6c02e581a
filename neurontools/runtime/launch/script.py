"""Runs a training script as Python would, with simulated NeuronCores in place."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from neurontools.runtime.launch.install import install


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a Python file as `python script.py` would, with the device in place."""
    path = Path(script)
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    install(script=path)
    runpy.run_path(script, run_name="__main__")


def run_module(module: str, arguments: list[str]) -> None:
    """Runs a module as `python -m module` would, with the device in place."""
    sys.argv = [module, *arguments]
    if sys.path and sys.path[0] != "":
        sys.path[0] = str(Path.cwd())
    install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
