"""Facts about Neuron instance types and device families, each with its certainty and source.

The TOML files in `data/` hold the facts. To add an instance type, add its table to the file of its family and its line
to `data/index.toml`; the code stays the same.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
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
        on_demand_usd_per_hour,
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
    "on_demand_usd_per_hour",
    "peak_flops_per_core",
    "peak_flops_per_logical_core",
    "sources",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, "facts", "reader")
