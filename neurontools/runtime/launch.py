"""Starts a training script on simulated NeuronCores, and the opt-in for programs that start otherwise."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

from neurontools.runtime import import_hook, names

SUMMARY = "NEURONTOOLS_SUMMARY_DIRECTORY"


def install(environment: Mapping[str, str] = os.environ, script: str | Path | None = None) -> None:
    """Makes the device and the torch_xla modules available to this process; may be called again.

    `script` is what the device's name follows (see `neurontools.runtime.names`).
    """
    import_hook.install(environment)
    from neurontools.runtime import setup

    if setup.is_set_up():
        return
    if script is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
    setup.set_up(names.device_name(environment, script), environment)
    directory = environment.get(SUMMARY)
    if directory:
        from neurontools.runtime import summary

        summary.write_at_exit(Path(directory))


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
