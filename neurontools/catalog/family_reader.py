"""Makes a DeviceFamily of its TOML table."""

from __future__ import annotations

from neurontools.catalog.fact import Fact
from neurontools.catalog.family import DeviceFamily, PciIds, PeakTflops, SysfsStrings
from neurontools.catalog.reader import Table


def read_family(name: str, table: Table) -> DeviceFamily:
    """The family in the table `family` of its file, which is called after it."""
    if table.take("name", str) != name:
        raise table.error("name", f"must be {name!r}, as the file is called")
    lnc_supported = table.take_all("lnc_supported", int)
    with table.inner("neuroncore_version") as versions:
        by_lnc = tuple(versions.take_fact(f"lnc{lnc}", str) for lnc in lnc_supported)
    with table.inner("pci") as pci:
        pci_ids = PciIds(pci.take("vendor_id", str), pci.take_all("device_ids", str), pci.take_all("source", str))
    with table.inner("sysfs") as sysfs:
        sysfs_strings = SysfsStrings(
            arch_type_device=sysfs.take("arch_type_device", str),
            arch_type_core=sysfs.take("arch_type_core", str),
            instance_type=sysfs.take("instance_type", str),
            device_name=sysfs.take("device_name", str),
            source=sysfs.take_all("source", str),
        )
    family = DeviceFamily(
        name=name,
        generation=table.take("generation", int),
        pci=pci_ids,
        sysfs=sysfs_strings,
        device_type=table.take_fact("device_type", str),
        device_version=table.take_fact("device_version", str),
        neuroncore_version_by_lnc=by_lnc,
        physical_core_count=_must_be_known("physical_core_count", table),
        lnc_supported=lnc_supported,
        lnc_default=table.take("lnc_default", int),
        device_memory_bytes=_must_be_known("device_memory_bytes", table),
        hbm_kind=table.take("hbm_kind", str),
        hbm_stack_count=table.take("hbm_stack_count", int),
        memory_bandwidth_bytes_per_second=table.take_fact("memory_bandwidth_bytes_per_second", int),
        peak_per_device=_peak("peak_tflops_per_device", table),
        peak_per_physical_core=_peak("peak_tflops_per_physical_core", table),
        sbuf_bytes_per_core=table.take_fact("sbuf_bytes_per_core", int),
        psum_bytes_per_core=table.take_fact("psum_bytes_per_core", int),
        sbuf_partition_count=table.take_fact("sbuf_partition_count", int),
        engines=table.take_all("engines", str),
        engine_clock_ghz=_rates("engine_clock_ghz", table),
        engine_peak_fp32_tflops=_rates("engine_peak_fp32_tflops", table),
        dma_engine_count=table.take_fact("dma_engine_count", int),
        collectives_core_count=table.take_fact("collectives_core_count", int),
        note=table.take_text("note"),
    )
    if family.lnc_default not in lnc_supported:
        raise table.error("lnc_default", f"{family.lnc_default} is none of lnc_supported")
    return family


def _must_be_known(key: str, table: Table) -> Fact[int]:
    fact = table.take_fact(key, int)
    if fact.value is None:
        raise table.error(key, "must have a value")
    return fact


def _peak(key: str, table: Table) -> PeakTflops:
    with table.inner(key) as peak:
        dense = peak.take_rates("dense")
        sparse = peak.take_rates("sparse") if peak.has("sparse") else ()
        standing = peak.take_standing(dense)
        return PeakTflops(dense, sparse, standing.status, standing.source, standing.note)


def _rates(key: str, table: Table) -> Fact[tuple[tuple[str, float], ...]]:
    with table.inner(key) as fact:
        return fact.take_standing(fact.take_rates("value") if fact.has("value") else None)
