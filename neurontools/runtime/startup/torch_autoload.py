"""The entry point of the group `torch.backends`, which `import torch` calls in every process.

It does nothing unless NEURONTOOLS_RUNTIME is 1, or the process is a worker of torchrun or of multiprocessing. In those
processes it installs the import hook, with which `import torch_xla` registers the device. The entry point itself
registers the device if the script uses the name `neuron`, or, with NEURONTOOLS_RUNTIME=1, the name `xla`.

Imports of the runtime are inside the function, so that all other processes load only this module and its packages.
"""

from __future__ import annotations

import os
import sys

OPT_IN = "NEURONTOOLS_RUNTIME"


def autoload() -> None:
    """If this process opted in, installs the import hook. Registers the device if the script names it.

    Only workers of torchrun take NeuronCores now. With NEURONTOOLS_RUNTIME=1, this also runs in launchers, which must
    leave the cores to their workers.
    """
    wanted = os.environ.get(OPT_IN, "")
    hook = sys.modules.get("neurontools.runtime.launch.import_hook")
    is_rank = "TORCHELASTIC_RUN_ID" in os.environ
    if wanted == "0" or not (wanted == "1" or is_rank or getattr(hook, "is_spawned_worker", False)):
        return
    from neurontools.runtime.launch import import_hook
    from neurontools.runtime.launch.device_name import choose_device_name

    import_hook.install_finder(os.environ)
    if import_hook.is_installing:
        return
    script = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else None)
    choice = choose_device_name(os.environ, script, sys.argv[1:])
    if choice.name == "neuron" or (wanted == "1" and choice.is_named and import_hook.is_stand_in("torch_xla")):
        from neurontools.runtime.launch.install import install_runtime

        install_runtime(script=script, takes_cores_now=is_rank)
