"""The host's own vCPUs and memory."""

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
class Host:
    """vCPUs and memory of the machine that the daemon runs on, also where the instance is simulated."""

    vcpu_count: int | None = None
    vcpu_average: VcpuUsage | None = None
    vcpus: tuple[VcpuUsage, ...] = ()  # in recordings from before there was vcpu_times; else that says it
    context_switches_total: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    vcpu_times: tuple[VcpuTimes, ...] = ()  # by vCPU index; empty when unknown

    __repr__ = showing("vcpu_count", "vcpu_average", "memory_used_bytes", "memory_total_bytes")
