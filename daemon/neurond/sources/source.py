"""The interface of every source of device state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from neurontools.model import Device, InjectedFault, Instance, NeuronCore, Process, SourceKind


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The devices and cores at one moment, levels and counters only; what could not be read is in `warnings`.

    `processes` are those that the source found to use the devices, whether or not they are attached to the daemon.
    `injected_faults` are the faults that are in the devices because somebody put them there.
    """

    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]
    warnings: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    injected_faults: tuple[InjectedFault, ...] = ()


class DeviceSource(Protocol):
    """A host's devices.

    `read` is called from the event loop at every tick and must be quick; it never raises for a part that can't be read.
    Where reading takes long (`is_slow`), `refresh` is called in a worker thread before, one call at a time, and `read`
    returns what it found.
    """

    kind: SourceKind
    instance: Instance
    is_slow: bool

    def refresh(self) -> None:
        """Reads the hardware; may block."""
        ...

    def read(self) -> DeviceReading:
        """The state now."""
        ...
