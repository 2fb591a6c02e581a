"""The host: its instance type, disks, network and vCPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.representation import repr_of_fields


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

    __repr__ = repr_of_fields("vcpu_count", "vcpu_average", "memory_used_bytes", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class UltraServerNode:
    """The host as a node of an UltraServer, which is several hosts whose devices NeuronLink joins.

    `links` says how: "ring", in which each device is linked to those of its index on the node before and the one after,
    or "switched", where all devices reach each other in a hop. Such links are not in `Device.connected_to`.
    """

    index: int | None  # of this node, from 0
    node_count: int | None
    name: str | None = None  # "Trn2 UltraServer"
    links: str | None = None
    link_bytes_per_second_per_device: int | None = None
    inferred_fields: tuple[str, ...] = ()  # as in Device


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity and shape of the host. A fact that is not known is None."""

    instance_type: str
    instance_id: str | None
    device_count: int
    physical_cores_per_device: int
    logical_neuroncore_config: int  # default of this host: physical cores per logical core
    logical_neuroncore_configs: tuple[int, ...]  # those the hardware can have
    device_memory_bytes: int
    hbm_stack_bytes: int
    topology: str  # single, line, ring, torus_2d, switched
    device_type: str | None = None  # as neuron-monitor names it: trainium, inferentia2, trainium2
    device_version: str | None = None  # "v2"
    neuroncore_version: str | None = None  # under the default LNC: "v2", "v3d"
    driver_version: str | None = None
    instance_name: str | None = None
    availability_zone: str | None = None
    availability_zone_id: str | None = None
    region: str | None = None
    ami_id: str | None = None
    subnet_id: str | None = None
    ultraserver_id: str | None = None
    inferred_fields: tuple[str, ...] = ()  # as in Device
    expected_device_indices: tuple[int, ...] = ()
    """Devices that whoever reads here should have: all of the instance, in a container those it was given. Those of
    them that are not in the snapshot are missing. Empty: not known.
    """
    foreign_device_count: int = 0  # devices that the driver shows and this reader was not given
    fileless_device_indices: tuple[int, ...] = ()  # of those expected: shown by the driver, their device file is gone
    ultraserver_node: UltraServerNode | None = None  # None: not one, or not known to be one

    __repr__ = repr_of_fields(
        "instance_type", "instance_id", "device_count", "physical_cores_per_device", "logical_neuroncore_config"
    )


_seconds = attrgetter(*(field.name for field in fields(VcpuTimes)))


def vcpu_usage_between(
    later: Sequence[VcpuTimes], earlier: Sequence[VcpuTimes]
) -> tuple[VcpuUsage, tuple[VcpuUsage, ...]] | None:
    """The average of all vCPUs, and each vCPU by index, from `earlier` to `later`.

    A vCPU whose clocks stood still gets the average. None when nothing can be told: times are unknown, no time has
    passed, or a vCPU came or went in between.
    """
    if len(later) != len(earlier):
        return None
    spent = [
        # The kernel's idle and io_wait clocks may step back a little.
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
