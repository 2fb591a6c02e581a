"""torch_xla._internal.tpu: the number of devices for Lightning."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import UnsupportedName

from ..distributed.xla_multiprocessing import process_count as _process_count


def num_available_devices() -> int:
    """Returns the number of processes of the job on this host, one device each: torchrun's, or those of `xmp.spawn`."""
    return _process_count()


version: Any = UnsupportedName("torch_xla._internal.tpu.version")
