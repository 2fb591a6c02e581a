"""The device of this process: its name, its cores, and when recorded graphs are executed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.core import Core

# A training step of a large transformer is some thousand operators; this many without a mark_step is a script that
# never marks one, whose graph would otherwise grow for ever.
DEFAULT_PENDING_BOUND = 20_000


class Device:
    """What torch knows under one device name. `cores[N]` is `xla:N`; `taken` is empty until
    the process has them, which a worker that only loads data never does.

    `eager` runs each operator as a graph of its own, as NEURON_USE_EAGER_DEBUG_MODE asks and as the native device does.
    """

    def __init__(self) -> None:
        self.name = "xla"
        self.taken: list[Core] = []
        self.take: Callable[[], list[Core]] = list
        self.eager = False
        self.pending_bound = DEFAULT_PENDING_BOUND
        self.flush: Callable[[Core, str], None] = _not_ready
        self._lazy_scopes = 0

    @property
    def cores(self) -> list[Core]:
        """The cores of this process; takes them when that has not happened yet, which may raise CoresUnavailable."""
        if not self.taken:
            self.taken = self.take()
        return self.taken

    @property
    def current(self) -> Core:
        """The core that `xla` without a number means."""
        return self.cores[0]

    def core(self, wanted: torch.device) -> Core:
        """The core of a torch device of ours; RuntimeError when the process has no such core."""
        index = wanted.index or 0
        if index >= len(self.cores):
            held = f"{self.name}:0" + (f" to {self.name}:{len(self.cores) - 1}" if len(self.cores) > 1 else "")
            raise RuntimeError(
                f"{self.name}:{index}: this process has {len(self.cores)} NeuronCore(s), {held}; ask for more with "
                "NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES"
            )
        return self.cores[index]

    def core_of(self, tensor: torch.Tensor) -> Core:
        """The core that a device tensor is on."""
        return self.taken[tensor.get_device()]

    def torch_device(self, core: Core) -> torch.device:
        """A core as torch names it."""
        return torch.device(self.name, core.local_index)

    def recorded(self, core: Core) -> None:
        """After an operator was recorded: executes what must not wait."""
        if len(core.pending.signatures) >= self.pending_bound:
            self.flush(core, "PendingGraphBound")
        elif self.eager and not self._lazy_scopes:
            self.flush(core, "Eager")

    def flush_all(self, reason: str) -> None:
        """Executes the pending graphs of all cores."""
        is_watched = ring.is_watching
        if is_watched:
            ring.begin_flush_all()
        try:
            for core in self.taken:
                self.flush(core, reason)
        finally:
            if is_watched:
                ring.end_flush_all()

    def enter_lazy_scope(self) -> None:
        """From here to `leave_lazy_scope` operators are recorded even where the device is eager."""
        self._lazy_scopes += 1

    def leave_lazy_scope(self) -> None:
        """The end of a lazy scope: the graph recorded in it is executed."""
        self._lazy_scopes -= 1
        self.flush_all("CompiledGraph")


def _not_ready(core: Core, reason: str) -> None:
    raise RuntimeError(f"the Neuron device is not set up (core {core.local_index}, {reason})")


device = Device()
