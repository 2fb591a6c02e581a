"""The device of this process: its cores, its pending graphs, and the process's description in profiles."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from neurontools.profile.definitions import ProfileMetadata
from neurontools.runtime.profiling.recorder import LiveBlock
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffers import Category, Core, buffers
from neurontools.util.version import __version__

# A training step of a large transformer has some thousand operators. This bound is for scripts that never call
# mark_step: their pending graph would grow forever.
DEFAULT_PENDING_BOUND = 20_000


class RecordingObserver(Protocol):
    """Receives the uses of device tensors that a recorded graph can't contain. Both methods may raise an error."""

    def before_read(self, tensor: torch.Tensor) -> None:
        """Runs before the host reads the value of a device tensor."""

    def before_eager(self, operator: str, tensors: Sequence[torch.Tensor], *, writes: bool) -> None:
        """Runs before an operator runs eagerly on these device tensors. `writes`: the operator changes a tensor."""


class Device:
    """The cores of this process as devices of torch under one name. `cores[N]` is `xla:N`.

    `acquired_cores` is empty until the first use of the device, so a process that only loads data acquires no cores. If
    `eager` is set, each operator is executed as a graph of its own. The device name `neuron` or
    NEURON_USE_EAGER_DEBUG_MODE=1 sets `eager`. `recording` observes the recording of a model for inference, if one is
    in progress.
    """

    def __init__(self) -> None:
        self.name = "xla"
        self.acquired_cores: list[Core] = []
        self.acquire_cores: Callable[[], list[Core]] = list
        self.eager = False
        self.pending_bound = DEFAULT_PENDING_BOUND
        self.flush: Callable[[Core, str], None] = _not_ready
        self.recording: RecordingObserver | None = None
        self._lazy_scopes = 0

    @property
    def cores(self) -> list[Core]:
        """The cores of this process. The first access acquires the cores, which may raise CoresUnavailable."""
        if not self.acquired_cores:
            self.acquired_cores = self.acquire_cores()
        return self.acquired_cores

    @property
    def current(self) -> Core:
        """The core of the device `xla` without an index."""
        return self.cores[0]

    def core(self, wanted: torch.device) -> Core:
        """Returns the core of a torch device. Raises RuntimeError if the process has no such core."""
        index = wanted.index or 0
        if index >= len(self.cores):
            names = f"{self.name}:0" + (f" to {self.name}:{len(self.cores) - 1}" if len(self.cores) > 1 else "")
            raise RuntimeError(
                f"{self.name}:{index}: this process has {len(self.cores)} NeuronCore(s), {names}; ask for more with "
                "NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES"
            )
        return self.cores[index]

    def core_of(self, tensor: torch.Tensor) -> Core:
        return self.acquired_cores[tensor.get_device()]

    def torch_device(self, core: Core) -> torch.device:
        return torch.device(self.name, core.local_index)

    def recorded(self, core: Core) -> None:
        """Executes the pending graph if it has reached `pending_bound` operators, or if the device is eager.

        The recorder calls this after each operator.
        """
        if len(core.pending.signatures) >= self.pending_bound:
            self.flush(core, "PendingGraphBound")
        elif self.eager and not self._lazy_scopes:
            self.flush(core, "Eager")

    def flush_all(self, reason: str) -> None:
        is_watched = ring.is_watching
        if is_watched:
            ring.begin_flush_all()
        try:
            for core in self.acquired_cores:
                self.flush(core, reason)
        finally:
            if is_watched:
                ring.end_flush_all()

    def enter_lazy_scope(self) -> None:
        """Begins a lazy scope. Until `leave_lazy_scope`, operators are recorded even if the device is eager."""
        self._lazy_scopes += 1

    def leave_lazy_scope(self) -> None:
        """Ends a lazy scope and executes the pending graphs."""
        self._lazy_scopes -= 1
        self.flush_all("CompiledGraph")


def _not_ready(core: Core, reason: str) -> None:
    raise RuntimeError(f"the Neuron device is not set up (core {core.local_index}, {reason})")


device = Device()


_NEURONCORE_VERSIONS = {"inf1": 1, "inf2": 2, "trn1": 2, "trn2": 3, "trn3": 4}


def neuroncore_version(name: str) -> int | None:
    """Returns the NeuronCore version of an instance type or of a --target value; None if unknown."""
    family = re.match(r"(inf|trn)\d", name)
    return _NEURONCORE_VERSIONS.get(family[0]) if family else None


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_SYNTHETIC_ADDRESS = 1 << 56  # for memory without a storage; above the addresses of all storages
_SYNTHETIC_ADDRESS_STEP = 1 << 48


class Worker:
    """Describes this process in profiles.

    `instance_type` and the logical NeuronCore configuration are None until the process has its cores and a daemon.
    """

    def __init__(self) -> None:
        self.instance_type: str | None = None
        self.logical_neuroncore_config: int | None = None

    def metadata(self) -> ProfileMetadata:
        """Returns the description of this process for a profile that begins now."""
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
            cores=tuple(core.global_index for core in device.acquired_cores),
            device_name=device.name,
            hbm_limit_bytes=max((core.memory.limit_bytes for core in device.acquired_cores), default=None),
            began_ns=time.time_ns(),
            script=_script(),
            torch_version=torch.__version__,
            written_by=f"neurontools {__version__}",
            logical_neuroncore_config=self.logical_neuroncore_config,
        )

    def live_blocks(self) -> list[LiveBlock]:
        """Returns the live storages with a value.

        Adds blocks with invented addresses for the model code, the scratchpad and the runtime memory of each core.
        """
        with buffers.lock:
            buffers.drain()
            found = [
                (each.address, each.layout.nbytes, each.core.global_index, int(each.category))
                for each in buffers.by_address.values()
                if each.value is not None
            ]
            for core in device.acquired_cores:
                for category in (Category.MODEL_CODE, Category.SCRATCHPAD, Category.RUNTIME):
                    if nbytes := core.memory.levels[category]:
                        address = _FIRST_SYNTHETIC_ADDRESS * (core.local_index + 1) + _SYNTHETIC_ADDRESS_STEP * category
                        found.append((address, nbytes, core.global_index, int(category)))
            return found

    def peaks(self) -> tuple[int, ...]:
        """Returns the peak HBM use of each core, in bytes."""
        return tuple(core.memory.peak_bytes for core in device.acquired_cores)


def _script() -> str:
    """Returns the path of the training script. Skips the launcher's path and `-m`, if sys.argv still has them."""
    launcher = Path(__file__).parents[1] / "__main__.py"
    given = sys.argv[1:] if Path(sys.argv[0]) == launcher else sys.argv
    return next((each for each in given if each != "-m"), "")


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and text.isascii() else 0


worker = Worker()
