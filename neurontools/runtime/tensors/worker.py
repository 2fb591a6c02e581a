"""What a profile says of this process, and what its HBM holds now."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import torch

from neurontools.profile.definitions import ProfileMetadata
from neurontools.runtime.profiling.recorder import LiveBlock
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import Category
from neurontools.util.version import __version__

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MADE_UP_ADDRESS = 1 << 56  # no storage is there
_MADE_UP_STEP = 1 << 48


class Worker:
    """This process as a worker; `instance_type` and LNC are known once it has its cores and a daemon."""

    def __init__(self) -> None:
        self.instance_type: str | None = None
        self.logical_neuroncore_config: int | None = None

    def metadata(self) -> ProfileMetadata:
        """Who it is, beginning now."""
        rank = _number("RANK")
        boot_id = ""
        with contextlib.suppress(OSError):
            boot_id = _BOOT_ID.read_text().strip()
        return ProfileMetadata(
            worker=f"rank {rank}",
            rank=rank,
            local_rank=_number("LOCAL_RANK"),
            world_size=_number("WORLD_SIZE") or 1,
            pid=os.getpid(),
            host=socket.gethostname(),
            boot_id=boot_id,
            instance_type=self.instance_type,
            cores=tuple(core.global_index for core in device.taken),
            device_name=device.name,
            hbm_limit_bytes=max((core.memory.limit_bytes for core in device.taken), default=None),
            began_ns=time.time_ns(),
            script=_script(),
            torch_version=torch.__version__,
            written_by=f"neurontools {__version__}",
            logical_neuroncore_config=self.logical_neuroncore_config,
        )

    def living(self) -> list[LiveBlock]:
        """The storages that have bytes, and a made-up one for what models and runtime take of each core."""
        with buffers.lock:
            buffers.drain()
            found = [
                (each.address, each.layout.nbytes, each.core.global_index, int(each.category))
                for each in buffers.by_address.values()
                if each.value is not None
            ]
            for core in device.taken:
                for category in (Category.MODEL_CODE, Category.SCRATCHPAD, Category.RUNTIME):
                    if nbytes := core.memory.levels[category]:
                        address = _MADE_UP_ADDRESS * (core.local_index + 1) + _MADE_UP_STEP * category
                        found.append((address, nbytes, core.global_index, int(category)))
            return found

    def peaks(self) -> tuple[int, ...]:
        """The highest use of the HBM of each core, bytes."""
        return tuple(core.memory.peak_bytes for core in device.taken)


def _script() -> str:
    """What is being run; cores are taken before our launcher makes sys.argv the script's own."""
    ours = Path(__file__).parents[1] / "__main__.py"
    given = sys.argv[1:] if Path(sys.argv[0]) == ours else sys.argv
    return next((each for each in given if each != "-m"), "")


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and text.isascii() else 0


worker = Worker()
