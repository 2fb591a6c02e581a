"""What every source of device state offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from neurontools.model import Device, Instance, NeuronCore, SourceKind


@dataclass(frozen=True, slots=True)
class Reading:
    """The devices and cores at one moment, levels and counters only; what could not be read is in `warnings`."""

    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]
    warnings: tuple[str, ...] = ()


class Source(Protocol):
    """A host's devices.

    `read` is called from the event loop at every tick and must be quick; it never raises for a part that can't be read.
    """

    kind: SourceKind
    instance: Instance

    def read(self) -> Reading:
        """The state now."""
        ...
