"""The sources of device state, simulated or from the driver's sysfs tree, and their common interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from neurontools.model import Device, InjectedFault, Instance, NeuronCore, Process, SourceKind


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The devices and cores at one moment, with levels and counters but without rates.

    `processes` are the processes that the source found using the devices, attached to the daemon or not.
    `warnings` describe what could not be read. `injected_faults` are the active faults of simulated devices.
    `unknown_health` says, by device index, why the health of a device is unknown.
    """

    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]
    warnings: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    injected_faults: tuple[InjectedFault, ...] = ()
    unknown_health: Mapping[int, str] = field(default_factory=dict)


class DeviceSource(Protocol):
    """Reads the devices of a host.

    The event loop calls `read` at every tick, so `read` must be quick. `read` does not raise for unreadable parts. If
    the source `is_slow`, a worker thread calls `refresh`, one call at a time, and `read` returns the latest result.
    """

    kind: SourceKind
    instance: Instance
    is_slow: bool

    def refresh(self) -> None:
        """Reads the hardware; may block."""

    def read(self) -> DeviceReading:
        """Returns the current state of the devices."""
