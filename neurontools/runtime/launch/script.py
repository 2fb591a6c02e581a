"""Runs a training script as Python would, with simulated NeuronCores in place."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

from neurontools.runtime.launch.install import install
from neurontools.util.errors import UserError
from neurontools.util.terminal import escape_controls


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a Python file as `python script.py` would, with the device in place."""
    path = Path(script)
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    install(script=path)
    runpy.run_path(script, run_name="__main__")


def look_for_module(module: str) -> None:
    """Makes the current directory the first place to import from, as `python -m` does; UserError when there is none."""
    if sys.path and sys.path[0] != "":
        sys.path[0] = str(Path.cwd())
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:  # runpy would say so with a traceback
        raise UserError(f"no module named {escape_controls(module)}; give one that Python finds from here")


def run_module(module: str, arguments: list[str]) -> None:
    """Runs a module as `python -m module` would, with the device in place."""
    sys.argv = [module, *arguments]
    install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
