"""The metric groups of the host, and what every record says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from neurontools.exporters.monitor import groups
from neurontools.exporters.monitor.period import Period
from neurontools.exporters.monitor.record_types import (
    CpuShares,
    DeviceEcc,
    HwCounters,
    InstanceInfo,
    MemoryInfo,
    NeuronHardwareInfo,
    SystemData,
    VcpuUsageGroup,
)
from neurontools.model import Device, Instance, VcpuUsage

_SHARES = ("user", "nice", "system", "idle", "io_wait", "irq", "soft_irq")
_ECC = ("mem_corrected", "mem_uncorrected", "sram_uncorrected", "sram_corrected")  # in the order of the original
_IDLE = VcpuUsage(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def system_data(periods: dict[str, Period]) -> SystemData:
    """The metric groups of the host, each over its own period, sorted by name as the original has them."""
    return cast(SystemData, {name: _WRITERS[name](periods[name]) for name in sorted(periods)})


def _memory_info(period: Period) -> MemoryInfo:
    host = period.now.host
    total, used = host.memory_total_bytes, host.memory_used_bytes
    return {
        "period": period.seconds,
        "memory_total_bytes": total or 0,
        "memory_used_bytes": used or 0,
        "swap_total_bytes": host.swap_total_bytes or 0,
        "swap_used_bytes": host.swap_used_bytes or 0,
        "error": "the host's memory can't be read" if total is None or used is None else "",
    }


def _vcpu_usage(period: Period) -> VcpuUsageGroup:
    now, before = period.now.host, period.before.host if period.before else None
    switches = None
    if before is not None and now.context_switches_total is not None and before.context_switches_total is not None:
        switches = now.context_switches_total - before.context_switches_total
    average, vcpus, seconds = period.vcpu_usage()
    return {
        "period": seconds,
        "average_usage": _shares(average or _IDLE),
        "usage_data": dict(sorted((str(index), _shares(usage)) for index, usage in enumerate(vcpus))),
        "context_switch_count": max(0, switches or 0),
        "error": "" if average is not None or not period.seconds else "the host's vCPU times can't be read",
    }


def _hw_counters(period: Period) -> HwCounters:
    before = {device.index: device for device in period.before.devices} if period.before else {}
    return {
        "period": period.seconds,
        "neuron_devices": [_ecc(device, before.get(device.index)) for device in period.now.devices],
        "error": "",
    }


def _ecc(device: Device, before: Device | None) -> DeviceEcc:
    counts = {"neuron_device_index": device.index}
    for name in _ECC:
        kind, _, outcome = name.partition("_")
        now = getattr(device.ecc, f"{name}_total") or 0  # not counted by every driver; the format has whole numbers
        earlier = getattr(before.ecc, f"{name}_total") or 0 if before else 0
        # A counter that fell was reset when the driver was loaded again.
        counts[f"{kind}_ecc_{outcome}"] = now - earlier if now >= earlier else now
    return cast(DeviceEcc, counts)


def _shares(usage: VcpuUsage) -> CpuShares:
    return cast(CpuShares, {name: round(100.0 * getattr(usage, f"{name}_ratio"), 2) for name in _SHARES})


_WRITERS: dict[str, Callable[[Period], object]] = {
    groups.MEMORY_INFO: _memory_info,
    groups.HW_COUNTERS: _hw_counters,
    groups.VCPU_USAGE: _vcpu_usage,
}


def instance_info(instance: Instance) -> InstanceInfo:
    """instance_info: "" for what is not known."""
    info: InstanceInfo = {
        "instance_name": instance.instance_name or "",
        "instance_id": instance.instance_id or "",
        "instance_type": instance.instance_type,
        "instance_availability_zone": instance.availability_zone or "",
        "instance_availability_zone_id": instance.availability_zone_id or "",
        "instance_region": instance.region or "",
        "ami_id": instance.ami_id or "",
        "subnet_id": instance.subnet_id or "",
        "error": "",
    }
    if instance.ultraserver_id:
        info["ultraserver_id"] = instance.ultraserver_id
    return info


def neuron_hardware_info(instance: Instance) -> NeuronHardwareInfo:
    """neuron_hardware_info; cores are logical, under the LNC of the host."""
    lnc = instance.logical_neuroncore_config
    return {
        "neuron_device_type": instance.device_type or "",
        "neuron_device_version": instance.device_version or "",
        "neuroncore_version": instance.neuroncore_version or "",
        "neuron_device_count": instance.device_count,
        "neuron_device_memory_size": instance.device_memory_bytes,
        "neuroncore_per_device_count": instance.physical_cores_per_device // lnc,
        "logical_neuroncore_config": lnc,
        "error": "",
    }
