"""Neuron instance types and device families: what is known about each, how surely, and from where.

The facts are the TOML files in `data/`. To add an instance type, add its table to the file of its family and its line
to `data/index.toml`; no code changes.
"""

from neurontools.catalog.fact import Fact, Status
from neurontools.catalog.family import DeviceFamily, PciIds, PeakTflops, SysfsStrings
from neurontools.catalog.instance_type import DeviceFacts, InstanceType, UltraServer
from neurontools.catalog.loader import (
    PEAK_DTYPE,
    UnknownInstanceType,
    family_names,
    load,
    load_family,
    names,
    peak_flops_per_core,
    peak_flops_per_logical_core,
    sources,
)
from neurontools.catalog.reader import CatalogDataError

__all__ = [
    "PEAK_DTYPE",
    "CatalogDataError",
    "DeviceFacts",
    "DeviceFamily",
    "Fact",
    "InstanceType",
    "PciIds",
    "PeakTflops",
    "Status",
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
