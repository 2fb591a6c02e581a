"""One Neuron device: a chip with its cores, its HBM and its links."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing, showing_changes
from neurontools.model.memory import HostMemory


@dataclass(frozen=True, slots=True)
class EccCounters:
    """ECC events since the driver was loaded; None where the driver does not count them."""

    mem_corrected_total: int | None = None
    mem_uncorrected_total: int | None = None
    mem_repairable_uncorrected_total: int | None = None
    sram_corrected_total: int | None = None
    sram_uncorrected_total: int | None = None

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class PowerUtilization:
    """Power of the last full minute as shares of the device's maximum; the driver tells no watts."""

    sampled_at_unix_seconds: float
    minimum_ratio: float
    maximum_ratio: float
    average_ratio: float


@dataclass(frozen=True, slots=True)
class HbmStack:
    """One HBM stack of a device; allocations of the cores that share it count against its capacity."""

    index: int
    capacity_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """What the driver itself says of the health of a device (Trainium2 and later, driver 2.30)."""

    unhealthy_components: tuple[str, ...] = ()  # in its own words: hbm, sram, link_host, link_efa

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class Device:
    """One Neuron device.

    `inferred_fields` names the fields whose value is not known from documentation, the driver or an observation but was
    concluded; a reader that relies on one of them should say so.
    """

    index: int
    bdf: str | None  # PCI address with domain, "0000:10:1c.0"
    cpu_affinity: str | None  # a list of vCPUs as the kernel writes it, "0-31,64-95"
    numa_node: str | None  # as the kernel writes it; "-1" where it knows of none
    connected_to: tuple[int, ...]  # NeuronLink neighbours, in the driver's order
    memory_bytes: int  # HBM capacity of the device
    hbm_stacks: tuple[HbmStack, ...] = ()
    serial_number: str | None = None
    ecc: EccCounters = EccCounters()
    power: PowerUtilization | None = None
    host_memory: HostMemory = HostMemory()
    inferred_fields: tuple[str, ...] = ()
    reported_health: ReportedHealth | None = None  # None: the driver says nothing

    __repr__ = showing("index", "bdf", "connected_to", "memory_bytes")
