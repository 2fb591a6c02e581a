"""The host's own vCPUs, memory, network and disks."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing


@dataclass(frozen=True, slots=True)
class VcpuUsage:
    """How vCPU time was spent in a period, shares that sum to 1."""

    user_ratio: float
    nice_ratio: float
    system_ratio: float
    idle_ratio: float
    io_wait_ratio: float
    irq_ratio: float
    soft_irq_ratio: float


@dataclass(frozen=True, slots=True)
class VcpuTimes:
    """vCPU time that one vCPU has spent in each state since boot."""

    user_seconds_total: float
    nice_seconds_total: float
    system_seconds_total: float
    idle_seconds_total: float
    io_wait_seconds_total: float
    irq_seconds_total: float
    soft_irq_seconds_total: float


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """Traffic of a network interface since boot; what goes over EFA past the kernel is not in it."""

    name: str
    received_bytes_total: int
    sent_bytes_total: int
    received_bytes_per_second: float | None = None  # between the latest two reads, 5 seconds apart
    sent_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """What was read from a whole disk and written to it since boot."""

    name: str
    read_bytes_total: int
    written_bytes_total: int
    read_bytes_per_second: float | None = None  # between the latest two reads, 5 seconds apart
    written_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device, which EFA devices are, since its driver was loaded. None: its driver doesn't tell."""

    device: str
    port: int
    state: str | None = None  # in the kernel's word: ACTIVE, DOWN
    received_bytes_total: int | None = None
    sent_bytes_total: int | None = None
    rdma_read_bytes_total: int | None = None
    rdma_write_bytes_total: int | None = None
    dropped_packets_total: int | None = None
    retransmitted_bytes_total: int | None = None
    retransmit_timeouts_total: int | None = None
    unresponsive_remotes_total: int | None = None
    failed_requests_total: int | None = None
    received_bytes_per_second: float | None = None  # between the latest two reads, 5 seconds apart
    sent_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """vCPUs, memory, network and disks of the machine that the daemon runs on, also where the instance is simulated."""

    vcpu_count: int | None = None
    vcpu_average: VcpuUsage | None = None
    vcpus: tuple[VcpuUsage, ...] = ()  # in recordings from before there was vcpu_times; else that says it
    context_switches_total: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    vcpu_times: tuple[VcpuTimes, ...] = ()  # by vCPU index; empty when unknown
    network_interfaces: tuple[NetworkInterface, ...] = ()  # by name: those of hardware where there are any, never lo
    disks: tuple[Disk, ...] = ()  # by name
    rdma_ports: tuple[RdmaPort, ...] = ()  # by device and port

    __repr__ = showing("vcpu_count", "vcpu_average", "memory_used_bytes", "memory_total_bytes")
