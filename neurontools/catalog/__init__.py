"""Neuron instance types and device families: what is known about each, how surely, and from where.

The facts are the TOML files in `data/`. To add an instance type, add its table to the file of its family and its line
to `data/index.toml`; no code changes.
"""

from neurontools.catalog.facts import (
    DeviceFacts,
    DeviceFamily,
    Fact,
    FactStatus,
    InstanceType,
    PciIds,
    PeakTflops,
    SysfsStrings,
    UltraServer,
)
from neurontools.catalog.reader import (
    PEAK_DTYPE,
    CatalogDataError,
    UnknownInstanceType,
    family_names,
    load,
    load_family,
    names,
    peak_flops_per_core,
    peak_flops_per_logical_core,
    sources,
)

__all__ = [
    "PEAK_DTYPE",
    "CatalogDataError",
    "DeviceFacts",
    "DeviceFamily",
    "Fact",
    "FactStatus",
    "InstanceType",
    "PciIds",
    "PeakTflops",
    "SysfsStrings",
    "UltraServer",
    "UnknownInstanceType",
    "family_names",
    "load",
    "load_family",
    "names",
    "peak_flops_per_core",
    "peak_flops_per_logical_core",
    "sources",
]
