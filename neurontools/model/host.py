"""Data classes for the host: instance type, vCPUs, memory, disks and network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.representation import repr_of_fields


@dataclass(frozen=True, slots=True)
class VcpuUsage:
    """Fractions of vCPU time in each state during a period. The fractions sum to 1."""

    user_ratio: float
    nice_ratio: float
    system_ratio: float
    idle_ratio: float
    io_wait_ratio: float
    irq_ratio: float
    soft_irq_ratio: float


@dataclass(frozen=True, slots=True)
class VcpuTimes:
    """Seconds that one vCPU spent in each state since boot."""

    user_seconds_total: float
    nice_seconds_total: float
    system_seconds_total: float
    idle_seconds_total: float
    io_wait_seconds_total: float
    irq_seconds_total: float
    soft_irq_seconds_total: float


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """Traffic of a network interface since boot. Does not include EFA traffic, which bypasses the kernel."""

    name: str
    received_bytes_total: int
    sent_bytes_total: int
    received_bytes_per_second: float | None = None  # mean rate between the last two reads of the counters, 5 s apart
    sent_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Traffic of a whole disk, with all partitions, since boot."""

    name: str
    read_bytes_total: int
    written_bytes_total: int
    read_bytes_per_second: float | None = None  # mean rate between the last two reads of the counters, 5 s apart
    written_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """Traffic of an RDMA (EFA) port since its driver was loaded. None: the driver does not report this counter."""

    device: str
    port: int
    state: str | None = None  # port state as the kernel names it: ACTIVE, DOWN
    received_bytes_total: int | None = None
    sent_bytes_total: int | None = None
    rdma_read_bytes_total: int | None = None
    rdma_write_bytes_total: int | None = None
    dropped_packets_total: int | None = None
    retransmitted_bytes_total: int | None = None
    retransmit_timeouts_total: int | None = None
    unresponsive_remotes_total: int | None = None
    failed_requests_total: int | None = None
    received_bytes_per_second: float | None = None  # mean rate between the last two reads of the counters, 5 s apart
    sent_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """vCPUs, memory, network and disks of the daemon's host. The values are real even if the devices are simulated."""

    vcpu_count: int | None = None
    vcpu_average: VcpuUsage | None = None
    vcpus: tuple[VcpuUsage, ...] = ()  # usage of each vCPU; only from old daemons, which lack vcpu_times
    context_switches_total: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    vcpu_times: tuple[VcpuTimes, ...] = ()  # times of each vCPU, in the order of the vCPU index; empty if unknown
    # network interfaces, sorted by name: only hardware interfaces if there are any, and never lo
    network_interfaces: tuple[NetworkInterface, ...] = ()
    disks: tuple[Disk, ...] = ()  # sorted by name
    rdma_ports: tuple[RdmaPort, ...] = ()  # RDMA ports, sorted by device and port

    __repr__ = repr_of_fields("vcpu_count", "vcpu_average", "memory_used_bytes", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class UltraServerNode:
    """The host's place in an UltraServer, which is several hosts whose devices are connected by NeuronLink.

    `links` is "ring" or "switched". In a ring, each device is linked to the devices with the same index on the previous
    and the next node. In a switched UltraServer, any two devices are one hop apart. `Device.connected_to` does not list
    links between nodes.
    """

    index: int | None  # index of this host in the UltraServer, from 0
    node_count: int | None
    name: str | None = None  # "Trn2 UltraServer"
    links: str | None = None
    link_bytes_per_second_per_device: int | None = None
    inferred_fields: tuple[str, ...] = ()  # names of fields with an inferred value


@dataclass(frozen=True, slots=True)
class Instance:
    """Instance type, identity and hardware of the host. None means unknown."""

    instance_type: str
    instance_id: str | None
    device_count: int
    physical_cores_per_device: int
    logical_neuroncore_config: int  # LNC of this host by default: physical cores per logical core
    logical_neuroncore_configs: tuple[int, ...]  # LNCs that the hardware supports
    device_memory_bytes: int
    hbm_stack_bytes: int
    topology: str  # how NeuronLink connects the devices: single, line, ring, torus_2d, switched
    device_type: str | None = None  # neuron-monitor's name of the device type: trainium, inferentia2, trainium2
    device_version: str | None = None  # "v2"
    neuroncore_version: str | None = None  # NeuronCore version under the default LNC: "v2", "v3d"
    driver_version: str | None = None
    instance_name: str | None = None
    availability_zone: str | None = None
    availability_zone_id: str | None = None
    region: str | None = None
    ami_id: str | None = None
    subnet_id: str | None = None
    ultraserver_id: str | None = None
    inferred_fields: tuple[str, ...] = ()  # names of fields with an inferred value
    expected_device_indices: tuple[int, ...] = ()
    """Devices that should exist: all devices of the instance, or the devices assigned to the container. An expected
    device that is not in the snapshot is missing. Empty if unknown.
    """
    foreign_device_count: int = 0  # number of devices that the driver shows but this container may not use
    fileless_device_indices: tuple[int, ...] = ()  # indices of expected devices that have no device file
    ultraserver_node: UltraServerNode | None = None  # None if the host is not known to be part of an UltraServer
    device_maximum_watts: float | None = None  # the maximum power of a device, as the administrator set it

    __repr__ = repr_of_fields(
        "instance_type", "instance_id", "device_count", "physical_cores_per_device", "logical_neuroncore_config"
    )


_seconds = attrgetter(*(field.name for field in fields(VcpuTimes)))


def vcpu_usage_between(
    later: Sequence[VcpuTimes], earlier: Sequence[VcpuTimes]
) -> tuple[VcpuUsage, tuple[VcpuUsage, ...]] | None:
    """Returns vCPU usage between two readings of the times: the mean of all vCPUs, and the usage of each vCPU.

    A vCPU whose times did not advance gets the mean. Returns None if the times are unknown, no vCPU's time advanced, or
    the number of vCPUs changed.
    """
    if len(later) != len(earlier):
        return None
    spent = [
        # The kernel's idle and io_wait times may decrease slightly.
        [max(0.0, after - before) for after, before in zip(_seconds(now), _seconds(then), strict=True)]
        for now, then in zip(later, earlier, strict=True)
    ]
    average = _usage([sum(state) for state in zip(*spent, strict=True)])
    if average is None:
        return None
    return average, tuple(_usage(vcpu) or average for vcpu in spent)


def _usage(seconds: list[float]) -> VcpuUsage | None:
    total = sum(seconds)
    return VcpuUsage(*(state / total for state in seconds)) if total > 0 else None
