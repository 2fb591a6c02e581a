"""Installs the runtime in this process and in processes that it spawns or sends tensors to, and runs scripts."""

from __future__ import annotations

import multiprocessing.spawn
import os
import runpy
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from neurontools.runtime.launch import import_hook, summary_files
from neurontools.runtime.launch.device_name import DEVICE_VARIABLE, choose_device_name, explain_other_name
from neurontools.util.errors import UserError
from neurontools.util.terminal import escape_controls

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from torch import Tensor


def install_runtime(environment: Mapping[str, str] = os.environ, script: str | Path | None = None) -> None:
    """Registers the device and makes torch_xla importable. A second call does nothing.

    The content of the file `script` decides the device name (see `neurontools.runtime.launch.device_name`).
    """
    import_hook.install_finder(environment)
    import_hook.is_installing = True
    try:
        import torch

        import_hook.warn_of_other_torch(torch.__version__)  # warns before imports that another torch may break
        from neurontools.runtime.launch.device_registration import (
            before_report_hooks,
            is_registered,
            register_device,
        )
        from neurontools.runtime.launch.spawned_workers import patch_start_processes, remove_lightning_launchers
        from neurontools.runtime.launch.summary import AdviceReporter
        from neurontools.runtime.tensors.device import device
        from neurontools.runtime.torch_device.storage_patches import patch_tensor_sharing
    finally:
        import_hook.is_installing = False

    if is_registered():
        return
    if script is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
    choice = choose_device_name(environment, script, sys.argv[1:])
    register_device(choice.name, environment)
    explain_other_name(choice)
    patch_tensor_sharing(receive_tensor)
    before_report_hooks.append(AdviceReporter(environment))
    patch_start_processes(environment)
    remove_lightning_launchers(environment)
    if not import_hook.is_spawned_worker:
        device.cores  # noqa: B018  (takes the cores now, so that the tools show the process from its start)
    _hook_spawned_processes(device.name)
    directory = environment.get(summary_files.DIRECTORY)
    if directory:
        from neurontools.runtime.launch import summary

        summary.write_summaries_to(Path(directory))


def _hook_spawned_processes(name: str) -> None:
    """Installs the import hook in processes that multiprocessing spawns, because they import the script again.

    Spawned processes take NeuronCores at their first use of the device.
    """
    original = multiprocessing.spawn.get_command_line

    def get_command_line(**keywords: object) -> list[str]:
        command = original(**keywords)
        position = command.index("-c") + 1 if "-c" in command else 0
        if position:
            command[position] = (
                "import os; from neurontools.runtime.launch import import_hook; "
                "import_hook.install_finder(os.environ); "
                "import_hook.is_spawned_worker = True; "
                f"os.environ.setdefault('{DEVICE_VARIABLE}', '{name}'); " + command[position]
            )
        return command

    multiprocessing.spawn.get_command_line = get_command_line


def receive_tensor(value: Tensor, where: str, requires_grad: bool, is_parameter: bool) -> Tensor:
    """Moves a tensor from another process to this process's device. Takes cores if this process has none."""
    install_runtime()
    import torch

    result = value.to(torch.device(where))
    return torch.nn.Parameter(result, requires_grad) if is_parameter else result.requires_grad_(requires_grad)


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a Python file as `python script.py` does, with the device installed."""
    path = Path(script)
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    install_runtime(script=path)
    runpy.run_path(script, run_name="__main__")


def require_module(module: str) -> None:
    """Puts the current directory first in `sys.path`, as `python -m` does. Raises UserError for a missing module."""
    if sys.path and sys.path[0] != "":
        sys.path[0] = str(Path.cwd())
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:  # UserError prints one line, runpy would print a traceback
        raise UserError(f"no module named {escape_controls(module)}; give one that Python finds from here")


def run_module(module: str, arguments: list[str]) -> None:
    """Runs a module as `python -m module` does, with the device installed."""
    sys.argv = [module, *arguments]
    install_runtime()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
