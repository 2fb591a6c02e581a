"""The account of a process that tells nothing of itself: what the driver counted on its cores while it held them."""

from __future__ import annotations

from neurond.journal.use import Use
from neurontools.model import NeuronCore, Process, Snapshot


class DriverAccount:
    """One process that was found on its devices, from the snapshot on in which it was first seen with its cores."""

    def __init__(self, process: Process, began_at_unix_seconds: float) -> None:
        self.process = process
        self.began_at_unix_seconds = began_at_unix_seconds
        self._lnc = max(1, process.logical_neuroncore_config)
        self._busy_before: dict[int, float] = {}
        self._flop_before: dict[int, int] = {}
        self._busy_seconds: float | None = None
        self._flop: int | None = None
        self._peak_bytes: int | None = None

    @property
    def use(self) -> Use:
        """Up to the last snapshot. The driver counts physical cores; a logical one is as busy as their mean."""
        busy = None if self._busy_seconds is None else self._busy_seconds / self._lnc
        return Use(busy, self._flop, self._peak_bytes)

    def observe(self, process: Process, snapshot: Snapshot) -> None:
        """Takes in what its cores have counted since the snapshot before."""
        self.process = process
        used_bytes = None
        for core in snapshot.cores_of(process):
            self._count(core)
            if core.memory.total_bytes is not None:
                used_bytes = (used_bytes or 0) + core.memory.total_bytes
        if used_bytes is not None:
            self._peak_bytes = max(used_bytes, self._peak_bytes or 0)

    def _count(self, core: NeuronCore) -> None:
        if core.busy_seconds_total is not None:
            before = self._busy_before.get(core.index, core.busy_seconds_total)
            self._busy_before[core.index] = core.busy_seconds_total
            # A counter that fell began anew: the driver was loaded again.
            self._busy_seconds = (self._busy_seconds or 0.0) + max(0.0, core.busy_seconds_total - before)
        if core.flop_total is not None:
            flop_before = self._flop_before.get(core.index, core.flop_total)
            self._flop_before[core.index] = core.flop_total
            self._flop = (self._flop or 0) + max(0, core.flop_total - flop_before)
