"""torch_xla._internal and its module tpu: the number of devices, which Lightning reads."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import UnsupportedName

from ..distributed.xla_multiprocessing import process_count as _process_count


def num_available_devices() -> int:
    """Returns the number of the job's processes on this host, started by torchrun or `xmp.spawn`.

    Each process has one device.
    """
    return _process_count()


version: Any = UnsupportedName("torch_xla._internal.tpu.version")
