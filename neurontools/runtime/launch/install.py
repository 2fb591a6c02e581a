"""Makes simulated NeuronCores available to this process, and to those it spawns or sends tensors."""

from __future__ import annotations

import multiprocessing.spawn
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from neurontools.runtime.launch import import_hook, names, other_name, summary_files, torch_version

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from torch import Tensor


def install(environment: Mapping[str, str] = os.environ, script: str | Path | None = None) -> None:
    """Makes the device and the torch_xla modules available to this process; may be called again.

    `script` is what the device's name follows (see `neurontools.runtime.launch.names`).
    """
    import_hook.install(environment)
    import_hook.is_installing = True
    try:
        import torch

        torch_version.tell_of_another(torch.__version__)  # before anything that another torch may lack
        from neurontools.runtime.launch import judgement, lightning_workers, own_workers, setup
        from neurontools.runtime.tensors.device import device
        from neurontools.runtime.torch_device import sharing
    finally:
        import_hook.is_installing = False

    if setup.is_set_up():
        return
    if script is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
    choice = names.choose(environment, script, sys.argv[1:])
    setup.set_up(choice.name, environment)
    other_name.explain(choice)
    sharing.install(received)
    setup.looks.append(judgement.Judgement(environment))
    own_workers.install(environment)
    lightning_workers.install(environment)
    if not import_hook.is_spawned_worker:
        device.cores  # noqa: B018  (takes them now, so that the tools show the process from its start)
    _hook_spawned_processes(device.name)
    directory = environment.get(summary_files.DIRECTORY)
    if directory:
        from neurontools.runtime.launch import summary

        summary.keep_in(Path(directory))


def _hook_spawned_processes(name: str) -> None:
    """Workers that multiprocessing spawns import the script anew, and with it torch_xla: it has to be found there too.

    They take no cores unless they use the device.
    """
    original = multiprocessing.spawn.get_command_line

    def get_command_line(**keywords: object) -> list[str]:
        command = original(**keywords)
        position = command.index("-c") + 1 if "-c" in command else 0
        if position:
            command[position] = (
                "import os; from neurontools.runtime.launch import import_hook; import_hook.install(os.environ); "
                "import_hook.is_spawned_worker = True; "
                f"os.environ.setdefault('{names.VARIABLE}', '{name}'); " + command[position]
            )
        return command

    multiprocessing.spawn.get_command_line = get_command_line


def received(value: Tensor, where: str, requires_grad: bool, is_parameter: bool) -> Tensor:
    """A tensor that another process sent, on the device of this one, which takes cores for it if it has none."""
    install()
    import torch

    result = value.to(torch.device(where))
    return torch.nn.Parameter(result, requires_grad) if is_parameter else result.requires_grad_(requires_grad)
