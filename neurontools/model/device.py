"""Data classes for devices and NeuronCores: memory, ECC errors, power and health."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.execution import StatusCounters
from neurontools.model.representation import repr_of_changed_fields, repr_of_fields


class _Categories:
    """Base class: memory in use, with one field per category of the driver."""

    __slots__: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """Sum of the known categories in bytes; None if all are unknown."""
        return _sum_values(_VALUES[type(self)](self))


@dataclass(frozen=True, slots=True)
class DeviceMemory(_Categories):
    """Device memory (HBM) in use, in bytes, by the driver's eleven categories.

    None means that a category cannot be read. `neuron-monitor` shows the first five categories; the other six are only
    in the driver's sysfs tree.
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

    `neuron-monitor` shows the first four categories per process. The other four are only in sysfs, per device.
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
    """Returns the bytes of each memory category by field name, in the order of the fields."""
    return {name: getattr(memory, name) for name in memory.__slots__}


def sum_device_memory(parts: Iterable[DeviceMemory]) -> DeviceMemory:
    """Adds device memory by category. A sum is None only if all values of the category are unknown."""
    return DeviceMemory(**_sum(DeviceMemory, parts))


def sum_host_memory(parts: Iterable[HostMemory]) -> HostMemory:
    """Adds host memory by category. A sum is None only if all values of the category are unknown."""
    return HostMemory(**_sum(HostMemory, parts))


def _sum(kind: type[DeviceMemory | HostMemory], parts: Iterable[DeviceMemory | HostMemory]) -> dict[str, int | None]:
    by_category = zip(*map(_VALUES[kind], parts), strict=True)
    return {field.name: _sum_values(values) for field, values in zip(fields(kind), by_category, strict=False)}


def _sum_values(values: tuple[int | None, ...]) -> int | None:
    if None in values:
        values = tuple(value for value in values if value is not None)
    return sum(values) if values else None  # type: ignore[arg-type]


# attrgetter reads all memory categories in one call, because a live view adds thousands of objects per second.
_VALUES: dict[type[_Categories], Callable[[_Categories], tuple[int | None, ...]]] = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in (DeviceMemory, HostMemory)
}


@dataclass(frozen=True, slots=True)
class EccCounters:
    """ECC errors of a device since the driver was loaded. None means that the driver does not count this kind."""

    mem_corrected_total: int | None = None
    mem_uncorrected_total: int | None = None
    mem_repairable_uncorrected_total: int | None = None
    sram_corrected_total: int | None = None
    sram_uncorrected_total: int | None = None

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class PowerUtilization:
    """Power of a device in the last full minute, as a ratio of its maximum. The driver does not report watts."""

    sampled_at_unix_seconds: float
    minimum_ratio: float
    maximum_ratio: float
    average_ratio: float


@dataclass(frozen=True, slots=True)
class HbmStack:
    """One HBM stack of a device. Several cores may share it and its capacity."""

    index: int
    capacity_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """Device health as the driver reports it (Trainium2 and later, driver 2.30)."""

    unhealthy_components: tuple[str, ...] = ()  # components by the driver's names: hbm, sram, link_host, link_efa

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class Device:
    """One Neuron device.

    `inferred_fields` names the fields with an inferred value: neither documented, nor reported by the driver, nor
    observed. Code that shows such a value should mark it as inferred.
    """

    index: int
    bdf: str | None  # PCI address with domain, "0000:10:1c.0"
    cpu_affinity: str | None  # vCPUs near the device, in the kernel's list format, "0-31,64-95"
    numa_node: str | None  # NUMA node of the device as the kernel prints it; "-1" for none
    connected_to: tuple[int, ...]  # indices of the NeuronLink neighbours, in the driver's order
    memory_bytes: int  # HBM capacity of the device
    hbm_stacks: tuple[HbmStack, ...] = ()
    serial_number: str | None = None
    ecc: EccCounters = EccCounters()
    power: PowerUtilization | None = None
    host_memory: HostMemory = HostMemory()
    inferred_fields: tuple[str, ...] = ()
    reported_health: ReportedHealth | None = None  # None if the driver does not report the device's health

    __repr__ = repr_of_fields("index", "bdf", "connected_to", "memory_bytes")

    @property
    def names(self) -> tuple[str, ...]:
        """PCI address and serial number of the device, as far as known."""
        return tuple(name for name in (self.bdf, self.serial_number) if name)


@dataclass(frozen=True, slots=True)
class NeuronCore:
    """One physical NeuronCore: its owner, utilization and memory.

    Counters start at `Snapshot.cores_counted_since_seconds` and continue across owners. The daemon computes rates and
    ratios from an owner's last two measurements. Rates and ratios are None before the owner's second measurement, and
    once the owner stops reporting.
    """

    index: int  # index of the physical core on the host: device_index * cores per device + index_on_device
    device_index: int
    index_on_device: int  # position of the core in the device's logical order
    hbm_stack_index: int  # index of the core's HBM stack on its device; cores may share a stack
    owner_pid: int | None = None  # PID of the owner; None: no owner is known (a simulated core is then free)
    busy_seconds_total: float | None = None  # seconds spent in executions, including running ones
    flop_total: int | None = None  # number of floating-point operations that the core executed
    executions_total: int | None = None  # number of executions that finished with any outcome
    memory: DeviceMemory = DeviceMemory()
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of the host when the counters were read
    execution_started_at_unix_seconds: float | None = None  # start of the running execution; None if none is running
    last_execution_at_unix_seconds: float | None = None  # end of the latest finished execution
    utilization_ratio: float | None = None  # fraction of time spent in executions between the last two measurements
    flops_per_second: float | None = None
    status: StatusCounters | None = None  # counters of the driver; None for a simulated device
    candidate_pids: tuple[int, ...] = ()  # if no owner is known: PIDs of all processes that have the device open
    # names of fields with an inferred value; has owner_pid if the only evidence is that the owner has the device open
    inferred_fields: tuple[str, ...] = ()
    reset_requests_total: int | None = None  # number of device resets requested since the driver was loaded
    reset_failures_total: int | None = None

    __repr__ = repr_of_fields("index", "device_index", "owner_pid", "utilization_ratio")

    @property
    def is_allocated(self) -> bool:
        """Whether the core has more memory in use than that of the driver itself."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)
