"""The entry point of the group `torch.backends`, which `import torch` calls in every process.

It does nothing unless NEURONTOOLS_RUNTIME is 1, or the process is a worker of torchrun or of multiprocessing. In those
processes it installs the import hook, with which `import torch_xla` registers the device. If the script uses the device
name `neuron`, the entry point itself registers the device.

Imports of the runtime are inside the function, so that all other processes load only this module and its packages.
"""

from __future__ import annotations

import os
import sys

OPT_IN = "NEURONTOOLS_RUNTIME"


def autoload() -> None:
    """If this process opted in, installs the import hook. Registers the device if the script uses the name `neuron`."""
    wanted = os.environ.get(OPT_IN, "")
    hook = sys.modules.get("neurontools.runtime.launch.import_hook")
    is_worker = "TORCHELASTIC_RUN_ID" in os.environ or getattr(hook, "is_spawned_worker", False)
    if wanted == "0" or not (wanted == "1" or is_worker):
        return
    from neurontools.runtime.launch import import_hook
    from neurontools.runtime.launch.device_name import device_name

    import_hook.install_finder(os.environ)
    if import_hook.is_installing:
        return
    script = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else None)
    if device_name(os.environ, script, sys.argv[1:]) == "neuron":
        from neurontools.runtime.launch.install import install_runtime

        install_runtime(script=script)
