"""The entry point of the group `torch.backends`: what `import torch` calls in every process.

It does nothing unless the process is a worker of torchrun, was told to by NEURONTOOLS_RUNTIME=1, or belongs to
neuron-run. There it makes `import torch_xla` find our modules; the device itself is made by that import, or at once
where the script uses the native device.

It stands outside of neurontools.runtime, whose import takes a while: processes that don't want it pay for two modules.
"""

from __future__ import annotations

import os
import sys

OPT_IN = "NEURONTOOLS_RUNTIME"


def autoload() -> None:
    """Makes the runtime available in processes that are meant to use it."""
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
