"""The host in the JSON document."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import Disk, Host, NetworkInterface, RdmaPort, Snapshot
from neurontools.views.host.vcpus import shares


@dataclass(frozen=True, slots=True)
class TopHost:
    """vCPUs, memory, network and disks of the host."""

    vcpu_count: int | None
    vcpu_user_ratio: float | None
    vcpu_system_ratio: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    network_interfaces: tuple[NetworkInterface, ...]
    disks: tuple[Disk, ...]
    rdma_ports: tuple[RdmaPort, ...]


@dataclass(frozen=True, slots=True)
class TopCost:
    """What the daemon itself costs."""

    vcpu_ratio: float | None
    resident_bytes: int | None


def top_host(host: Host) -> TopHost:
    """The document of a host."""
    average = host.vcpu_average
    user, system = (None, None) if average is None else shares(average)
    return TopHost(
        host.vcpu_count,
        user,
        system,
        host.memory_total_bytes,
        host.memory_used_bytes,
        host.network_interfaces,
        host.disks,
        host.rdma_ports,
    )


def top_cost(snapshot: Snapshot) -> TopCost:
    """The document of what the daemon costs."""
    return TopCost(snapshot.daemon_vcpu_ratio, snapshot.daemon_resident_bytes)
