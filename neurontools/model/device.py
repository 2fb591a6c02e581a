"""Devices and NeuronCores, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.execution import StatusCounters
from neurontools.model.representation import repr_of_changed_fields, repr_of_fields


class _Categories:
    """Memory in use, a field for each category."""

    __slots__: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """The sum of the known categories; None when none is known."""
        return _sum_of_known(_VALUES[type(self)](self))


@dataclass(frozen=True, slots=True)
class DeviceMemory(_Categories):
    """HBM in use at one place, in the driver's eleven categories, bytes.

    The first five are the ones `neuron-monitor` shows; the other six exist in the driver's sysfs tree only.
    A category that cannot be read is None.
    """

    constants_bytes: int | None = 0
    model_code_bytes: int | None = 0
    model_shared_scratchpad_bytes: int | None = 0
    runtime_memory_bytes: int | None = 0
    tensors_bytes: int | None = 0
    collectives_bytes: int | None = 0
    dma_rings_bytes: int | None = 0
    driver_memory_bytes: int | None = 0
    nonshared_scratchpad_bytes: int | None = 0
    notifications_bytes: int | None = 0
    uncategorized_bytes: int | None = 0

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class HostMemory(_Categories):
    """Host memory that serves the devices, in the driver's eight categories, bytes.

    The first four are the ones `neuron-monitor` shows per process; the other four exist per device in sysfs only.
    """

    application_memory_bytes: int | None = 0
    constants_bytes: int | None = 0
    dma_buffers_bytes: int | None = 0
    tensors_bytes: int | None = 0
    dma_rings_bytes: int | None = 0
    driver_memory_bytes: int | None = 0
    notifications_bytes: int | None = 0
    uncategorized_bytes: int | None = 0

    __repr__ = repr_of_changed_fields


def memory_categories(memory: _Categories) -> dict[str, int | None]:
    """The categories by field name, in the order of their definition."""
    return {name: getattr(memory, name) for name in memory.__slots__}


def sum_device_memory(parts: Iterable[DeviceMemory]) -> DeviceMemory:
    """Category by category; a category is unknown only where it is unknown in every part."""
    return DeviceMemory(**_sum(DeviceMemory, parts))


def sum_host_memory(parts: Iterable[HostMemory]) -> HostMemory:
    """Category by category; a category is unknown only where it is unknown in every part."""
    return HostMemory(**_sum(HostMemory, parts))


def _sum(kind: type[DeviceMemory | HostMemory], parts: Iterable[DeviceMemory | HostMemory]) -> dict[str, int | None]:
    by_category = zip(*map(_VALUES[kind], parts), strict=True)
    return {field.name: _sum_of_known(values) for field, values in zip(fields(kind), by_category, strict=False)}


def _sum_of_known(values: tuple[int | None, ...]) -> int | None:
    if None in values:
        values = tuple(value for value in values if value is not None)
    return sum(values) if values else None  # type: ignore[arg-type]


# The values of all categories at once: a live view adds up some thousand of them a second.
_VALUES: dict[type[_Categories], Callable[[_Categories], tuple[int | None, ...]]] = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in (DeviceMemory, HostMemory)
}


@dataclass(frozen=True, slots=True)
class EccCounters:
    """ECC events since the driver was loaded; None where the driver does not count them."""

    mem_corrected_total: int | None = None
    mem_uncorrected_total: int | None = None
    mem_repairable_uncorrected_total: int | None = None
    sram_corrected_total: int | None = None
    sram_uncorrected_total: int | None = None

    __repr__ = repr_of_changed_fields


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

    __repr__ = repr_of_changed_fields


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

    __repr__ = repr_of_fields("index", "bdf", "connected_to", "memory_bytes")


@dataclass(frozen=True, slots=True)
class NeuronCore:
    """One physical NeuronCore: who holds it, how busy it is, what lies in its memory.

    Counters belong to the core and run on from one owner to the next, since `Snapshot.cores_counted_since_seconds`.
    Rates and ratios are derived by the daemon; they are None before two measurements of the same owner, and when the
    owner has stopped reporting.
    """

    index: int  # on the host, physical: device_index * cores per device + index_on_device
    device_index: int
    index_on_device: int  # position in the logical order of the device
    hbm_stack_index: int  # on its device; physical cores may share a stack
    owner_pid: int | None = None  # None: nobody is known to hold it; where devices are simulated, it is free
    busy_seconds_total: float | None = None  # time in executions, those still running included
    flop_total: int | None = None  # floating point operations executed
    executions_total: int | None = None  # finished executions, whatever their outcome
    memory: DeviceMemory = DeviceMemory()
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of the host, when the counters were taken
    execution_started_at_unix_seconds: float | None = None  # of the execution in flight; None when there is none
    last_execution_at_unix_seconds: float | None = None  # end of the latest finished execution
    utilization_ratio: float | None = None  # share of the last period spent in executions
    flops_per_second: float | None = None
    status: StatusCounters | None = None  # of a driver; None where the devices are simulated
    candidate_pids: tuple[int, ...] = ()  # without an owner: who has its device open and may hold it
    inferred_fields: tuple[str, ...] = ()  # as in Device; owner_pid where the device is open and the core not named
    reset_requests_total: int | None = None  # since the driver was loaded, which counts them
    reset_failures_total: int | None = None

    __repr__ = repr_of_fields("index", "device_index", "owner_pid", "utilization_ratio")

    @property
    def is_allocated(self) -> bool:
        """Whether somebody has memory on it, beyond what the driver itself needs."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)
