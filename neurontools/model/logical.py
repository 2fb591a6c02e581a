"""Logical NeuronCores: physical cores grouped as the LNC (logical NeuronCore configuration) has it."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing
from neurontools.model.memory import DeviceMemory, sum_device_memory
from neurontools.model.neuroncore import NeuronCore
from neurontools.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LogicalNeuronCore:
    """What a user calls a NeuronCore: `logical_neuroncore_config` neighbouring physical cores of one device."""

    index: int  # global
    device_index: int
    cores: tuple[NeuronCore, ...]

    __repr__ = showing("index", "device_index", "owner_pids", "utilization_ratio")

    @property
    def owner_pids(self) -> tuple[int, ...]:
        """Who holds its physical cores; more than one only where processes run with different LNCs."""
        return tuple(sorted({core.owner_pid for core in self.cores if core.owner_pid is not None}))

    @property
    def candidate_pids(self) -> tuple[int, ...]:
        """Who has the device open and may hold one of its physical cores."""
        return tuple(sorted({pid for core in self.cores for pid in core.candidate_pids}))

    @property
    def is_owner_inferred(self) -> bool:
        """Whether who holds it was only concluded."""
        return any("owner_pid" in core.inferred_fields for core in self.cores)

    @property
    def is_free(self) -> bool | None:
        """Whether nobody holds it; None when that is unknown: somebody may, or nobody we see has memory there."""
        if self.owner_pids:
            return False
        return None if self.candidate_pids or any(core.is_allocated for core in self.cores) else True

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its physical cores; None when it is unknown for all of them."""
        known = [core.utilization_ratio for core in self.cores if core.utilization_ratio is not None]
        return sum(known) / len(known) if known else None

    @property
    def flops_per_second(self) -> float | None:
        """The sum over its physical cores; None when it is unknown for all of them."""
        known = [core.flops_per_second for core in self.cores if core.flops_per_second is not None]
        return sum(known) if known else None

    @property
    def memory(self) -> DeviceMemory:
        """The sum over its physical cores."""
        return sum_device_memory(core.memory for core in self.cores)


def logical_cores(snapshot: Snapshot, logical_neuroncore_config: int | None = None) -> tuple[LogicalNeuronCore, ...]:
    """All cores of the host, grouped; by its default LNC unless another one is given."""
    size = logical_neuroncore_config or snapshot.instance.logical_neuroncore_config
    groups: dict[tuple[int, int], list[NeuronCore]] = {}
    for core in snapshot.cores:
        groups.setdefault((core.device_index, core.index_on_device // size), []).append(core)
    per_device = snapshot.instance.physical_cores_per_device // size
    return tuple(
        LogicalNeuronCore(device_index * per_device + position, device_index, tuple(cores))
        for (device_index, position), cores in sorted(groups.items())
    )
