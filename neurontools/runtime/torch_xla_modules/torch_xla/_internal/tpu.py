"""torch_xla._internal.tpu: how many devices Lightning may use."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import UnsupportedName

from ..distributed.xla_multiprocessing import process_count as _process_count


def num_available_devices() -> int:
    """How many processes with a device each a job on this host has: torchrun's, or those that `xmp.spawn` starts."""
    return _process_count()


version: Any = UnsupportedName("torch_xla._internal.tpu.version")
