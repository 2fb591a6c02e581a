"""An instance type as estimates see it: its cores and what each can do at best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neurontools import catalog
from neurontools.estimate.failure import EstimateError

_RATES = {  # torch's element types, and the catalog's names for the rate at which they are multiplied
    "float32": ("fp32",),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "bf16"),
    "tf32": ("tf32", "bf16"),
    "float8_e4m3fn": ("fp8", "cfp8", "bf16"),
    "float8_e5m2": ("fp8", "cfp8", "bf16"),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One instance type. A core is a logical NeuronCore at the family's default LNC."""

    name: str
    core_count: int
    core_memory_bytes: int
    peak_flops: Mapping[str, float]  # of one core, by torch's element types
    memory_bytes_per_second: float | None  # of one core

    @classmethod
    def of(cls, name: str) -> Machine:
        """The machine of an instance type; EstimateError for one that isn't known, or that nothing trains on."""
        try:
            kind = catalog.load(name)
        except catalog.UnknownInstanceType as error:
            raise EstimateError(str(error)) from None
        family = kind.family
        per_device = kind.logical_cores_per_device()
        bandwidth = family.memory_bandwidth_bytes_per_second.value
        peaks = {}
        for dtype, rates in _RATES.items():
            found = next((rate for each in rates if (rate := family.peak_flops_per_physical_core(each))), None)
            if found is not None:
                peaks[dtype] = found * family.checked_lnc()
        if "float32" not in peaks:
            raise EstimateError(f"{name}: its devices have no published rate for float32, and nothing trains on them")
        return cls(
            name=name,
            core_count=kind.logical_core_count(),
            core_memory_bytes=(family.device_memory_bytes.value or 0) // per_device,
            peak_flops=peaks,
            memory_bytes_per_second=None if bandwidth is None else bandwidth / per_device,
        )

    def seconds_at_peak(self, flops_by_dtype: Mapping[str, float]) -> float:
        """How long one core takes for these FLOPs at its peak; types without a rate of their own go as float32."""
        slowest = self.peak_flops["float32"]
        return sum(flops / self.peak_flops.get(dtype, slowest) for dtype, flops in flops_by_dtype.items())
