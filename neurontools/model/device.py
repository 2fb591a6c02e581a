"""Devices and NeuronCores, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.execution import StatusCounters
from neurontools.model.representation import repr_of_changed_fields, repr_of_fields


class _Categories:
    """Memory in use, one field per category."""

    __slots__: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """Sum of the known categories. None if none is known."""
        return _sum_of_known(_VALUES[type(self)](self))


@dataclass(frozen=True, slots=True)
class DeviceMemory(_Categories):
    """Device memory (HBM) in use, in bytes, by the driver's eleven categories. None: cannot be read.

    `neuron-monitor` shows the first five. The other six are in the driver's sysfs tree only.
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
    """Host memory in use for the devices, in bytes, by the driver's eight categories.

    `neuron-monitor` shows the first four per process. The other four are in sysfs only, per device.
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
    """Returns the categories by field name, in the order of the fields."""
    return {name: getattr(memory, name) for name in memory.__slots__}


def sum_device_memory(parts: Iterable[DeviceMemory]) -> DeviceMemory:
    """Adds each category. A category is unknown only if it is unknown in every part."""
    return DeviceMemory(**_sum(DeviceMemory, parts))


def sum_host_memory(parts: Iterable[HostMemory]) -> HostMemory:
    """Adds each category. A category is unknown only if it is unknown in every part."""
    return HostMemory(**_sum(HostMemory, parts))


def _sum(kind: type[DeviceMemory | HostMemory], parts: Iterable[DeviceMemory | HostMemory]) -> dict[str, int | None]:
    by_category = zip(*map(_VALUES[kind], parts), strict=True)
    return {field.name: _sum_of_known(values) for field, values in zip(fields(kind), by_category, strict=False)}


def _sum_of_known(values: tuple[int | None, ...]) -> int | None:
    if None in values:
        values = tuple(value for value in values if value is not None)
    return sum(values) if values else None  # type: ignore[arg-type]


# Reads all categories at once, because a live view adds thousands of them per second.
_VALUES: dict[type[_Categories], Callable[[_Categories], tuple[int | None, ...]]] = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in (DeviceMemory, HostMemory)
}


@dataclass(frozen=True, slots=True)
class EccCounters:
    """ECC errors since the driver was loaded. None: the driver does not count them."""

    mem_corrected_total: int | None = None
    mem_uncorrected_total: int | None = None
    mem_repairable_uncorrected_total: int | None = None
    sram_corrected_total: int | None = None
    sram_uncorrected_total: int | None = None

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class PowerUtilization:
    """Power in the last full minute, as a ratio of the device's maximum. The driver does not report watts."""

    sampled_at_unix_seconds: float
    minimum_ratio: float
    maximum_ratio: float
    average_ratio: float


@dataclass(frozen=True, slots=True)
class HbmStack:
    """One HBM stack of a device. The cores that share it allocate from its capacity."""

    index: int
    capacity_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """Device health as the driver reports it (Trainium2 and later, driver 2.30)."""

    unhealthy_components: tuple[str, ...] = ()  # the driver's terms: hbm, sram, link_host, link_efa

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class Device:
    """One Neuron device.

    `inferred_fields` names the fields whose value was inferred rather than documented, reported by the driver or
    observed. Code that relies on such a field should say so.
    """

    index: int
    bdf: str | None  # PCI address with domain, "0000:10:1c.0"
    cpu_affinity: str | None  # vCPUs in the kernel's format, "0-31,64-95"
    numa_node: str | None  # in the kernel's format; "-1" for no node
    connected_to: tuple[int, ...]  # NeuronLink neighbours, in the driver's order
    memory_bytes: int  # HBM capacity of the device
    hbm_stacks: tuple[HbmStack, ...] = ()
    serial_number: str | None = None
    ecc: EccCounters = EccCounters()
    power: PowerUtilization | None = None
    host_memory: HostMemory = HostMemory()
    inferred_fields: tuple[str, ...] = ()
    reported_health: ReportedHealth | None = None  # None: the driver does not report it

    __repr__ = repr_of_fields("index", "bdf", "connected_to", "memory_bytes")


@dataclass(frozen=True, slots=True)
class NeuronCore:
    """One physical NeuronCore: its owner, its utilization and its memory.

    Counters belong to the core and continue across owners, since `Snapshot.cores_counted_since_seconds`. The daemon
    derives rates and ratios. They are None until it has two measurements of the same owner, and when the owner stops
    reporting.
    """

    index: int  # on the host, physical: device_index * cores per device + index_on_device
    device_index: int
    index_on_device: int  # position in the logical order of the device
    hbm_stack_index: int  # on its device; physical cores may share a stack
    owner_pid: int | None = None  # None: no known owner; a simulated core is then free
    busy_seconds_total: float | None = None  # time in executions, running ones included
    flop_total: int | None = None  # floating point operations executed
    executions_total: int | None = None  # finished executions of any outcome
    memory: DeviceMemory = DeviceMemory()
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of the host, when the counters were taken
    execution_started_at_unix_seconds: float | None = None  # start of the running execution; None: none is running
    last_execution_at_unix_seconds: float | None = None  # end of the latest finished execution
    utilization_ratio: float | None = None  # share of the last period spent in executions
    flops_per_second: float | None = None
    status: StatusCounters | None = None  # of the driver; None: simulated device
    candidate_pids: tuple[int, ...] = ()  # if there is no owner: processes that have the device open
    inferred_fields: tuple[str, ...] = ()  # as in Device; owner_pid if the owner only has the device open
    reset_requests_total: int | None = None  # since the driver was loaded
    reset_failures_total: int | None = None

    __repr__ = repr_of_fields("index", "device_index", "owner_pid", "utilization_ratio")

    @property
    def is_allocated(self) -> bool:
        """Whether memory beyond the driver's own is in use on the core."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)
