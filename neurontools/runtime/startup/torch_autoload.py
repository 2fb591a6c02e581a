"""The entry point of the group `torch.backends`, which `import torch` calls in every process.

It does nothing unless NEURONTOOLS_RUNTIME is 1 or the process is a worker of torchrun. There it installs the import
hook. `import torch_xla` then registers the device; a script that uses the device name `neuron` gets it at once.

Imports of the runtime are inside the function, so that other processes load only this module and its packages.
"""

from __future__ import annotations

import os
import sys

OPT_IN = "NEURONTOOLS_RUNTIME"


def autoload() -> None:
    """Installs the import hook, and for a script that names `neuron` the device, in processes that opted in."""
    wanted = os.environ.get(OPT_IN, "")
    if wanted == "0" or not (wanted == "1" or "TORCHELASTIC_RUN_ID" in os.environ):
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
