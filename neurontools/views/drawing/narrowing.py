"""Which part of a host is shown: some devices, or the NeuronCores that a process would see."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neurontools.model import EndedProcess, Health, Snapshot
from neurontools.views.drawing.figures import Figures


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is asked for. Without anything, all of the host is shown.

    `device_indices` and `bdfs` together are the devices, none of both are all. `first_core` and `core_count` are
    logical NeuronCores under `logical_neuroncore_config` (None: the host's).
    """

    device_indices: frozenset[int] = frozenset()
    bdfs: frozenset[str] = frozenset()
    first_core: int = 0
    core_count: int | None = None
    logical_neuroncore_config: int | None = None

    def __bool__(self) -> bool:
        return bool(self.device_indices or self.bdfs or self.core_count is not None)

    def missing(self, snapshot: Snapshot) -> str:
        """The first of the devices asked for that this host does not have; "" for none."""
        present = {device.index for device in snapshot.devices} | set(snapshot.instance.expected_device_indices)
        known = {device.bdf for device in snapshot.devices}
        lost = [str(index) for index in sorted(self.device_indices - present)]
        return next(iter([*lost, *sorted(self.bdfs - known)]), "")

    def has_cores(self, snapshot: Snapshot) -> bool:
        """Whether this host has one of the NeuronCores asked for; True as well while a device is missing."""
        present = {device.index for device in snapshot.devices}
        return (
            self.core_count is None
            or not present.issuperset(snapshot.instance.expected_device_indices)
            or any(core.index in self._visible(snapshot) for core in snapshot.cores)
        )

    def _visible(self, snapshot: Snapshot) -> range:
        """The physical NeuronCores asked for; of what is not restricted nobody asks."""
        size = self.logical_neuroncore_config or snapshot.instance.logical_neuroncore_config
        return range(self.first_core * size, (self.first_core + (self.core_count or 0)) * size)

    def figures(self, snapshot: Snapshot, hidden: frozenset[int] = frozenset()) -> Figures:
        """The figures of what is shown of a snapshot; `hidden`: devices that are not to be, on top of that."""
        if not self and not hidden:
            return Figures(snapshot)
        part = self.part(snapshot, hidden)
        shown = {device.index for device in part.devices}
        return Figures(part, [device for device in snapshot.devices if device.index not in shown])

    def part(self, snapshot: Snapshot, hidden: frozenset[int] = frozenset()) -> Snapshot:
        """What is shown of a snapshot; with the processes that hold something of it."""
        if not self and not hidden:
            return snapshot
        shown = {device.index for device in snapshot.devices} - hidden
        if self.device_indices or self.bdfs:
            shown &= self.device_indices | {device.index for device in snapshot.devices if device.bdf in self.bdfs}
        cores = tuple(core for core in snapshot.cores if core.device_index in shown)
        if self.core_count is not None:
            visible = self._visible(snapshot)
            cores = tuple(core for core in cores if core.index in visible)
            shown &= {core.device_index for core in cores}
        held = {core.index for core in cores}
        return replace(
            snapshot,
            ended=_ended_on(snapshot.ended, shown),
            devices=tuple(device for device in snapshot.devices if device.index in shown),
            cores=cores,
            health=_health_of(snapshot.health, {device.index for device in snapshot.devices} - shown),
            processes=tuple(
                process
                for process in snapshot.processes
                if held.intersection(process.core_indices)
                or (not process.core_indices and shown.intersection(process.device_indices))
            ),
        )

    def ended(
        self, ended: tuple[EndedProcess, ...], part: Snapshot, hidden: frozenset[int] = frozenset()
    ) -> tuple[EndedProcess, ...]:
        """Those of more that have ended, than the snapshot has, that held something of `part`, what is shown of it."""
        if not self and not hidden:
            return ended
        return _ended_on(ended, {device.index for device in part.devices})


def _ended_on(ended: tuple[EndedProcess, ...], shown: set[int]) -> tuple[EndedProcess, ...]:
    return tuple(process for process in ended if shown.intersection(process.device_indices))


def _health_of(health: Health | None, hidden: set[int]) -> Health | None:
    """The verdicts without those on hidden devices; what is about no device stays."""
    if health is None:
        return None
    return replace(
        health,
        device_indices=tuple(index for index in health.device_indices if index not in hidden),
        unknown_device_indices=tuple(index for index in health.unknown_device_indices if index not in hidden),
        findings=tuple(
            finding
            for finding in health.findings
            if not finding.device_indices or not hidden.issuperset(finding.device_indices)
        ),
    )
