"""A device family: what all devices of one chip have in common."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.catalog.fact import Fact, Status

_FLOPS_PER_TFLOPS = 1e12
_HZ_PER_GHZ = 1e9


@dataclass(frozen=True, slots=True)
class PciIds:
    """PCI ids as four lower-case hex digits; a family may have several device ids."""

    vendor_id: str
    device_ids: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SysfsStrings:
    """What the driver's sysfs tree calls the family; it numbers generations differently from the tools."""

    arch_type_device: str  # "NDv2"
    arch_type_core: str  # "NCv2"
    instance_type: str  # "Trn1"
    device_name: str  # "Trainium1"
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeakTflops:
    """Peak rates by data type, in units of 10^12 operations per second; types are spelled as AWS does: "bf16", "cfp8".

    Rates per core are per physical core, and on Trainium2 and later their sum is below the rate of the device: AWS
    states both so.
    """

    dense: tuple[tuple[str, float], ...]
    sparse: tuple[tuple[str, float], ...]
    status: Status
    source: tuple[str, ...]
    note: str

    def flops(self, dtype: str, sparse: bool = False) -> float | None:
        """Operations per second; None when no rate is stated for the type."""
        tflops = dict(self.sparse if sparse else self.dense).get(dtype)
        return None if tflops is None else tflops * _FLOPS_PER_TFLOPS


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """One chip family, such as Trainium. Cores are physical unless a name says logical."""

    name: str  # "trainium"
    generation: int  # of the driver's hardware layer: 1 to 4
    pci: PciIds
    sysfs: SysfsStrings
    device_type: Fact[str]  # neuron_device_type of neuron-monitor
    device_version: Fact[str]  # neuron_device_version of neuron-monitor
    neuroncore_version_by_lnc: tuple[Fact[str], ...]  # in the order of lnc_supported
    physical_core_count: Fact[int]  # per device; always known
    lnc_supported: tuple[int, ...]  # physical cores per logical core that can be configured
    lnc_default: int
    device_memory_bytes: Fact[int]  # always known
    hbm_kind: str
    hbm_stack_count: int
    memory_bandwidth_bytes_per_second: Fact[int]
    peak_per_device: PeakTflops
    peak_per_physical_core: PeakTflops
    sbuf_bytes_per_core: Fact[int]
    psum_bytes_per_core: Fact[int]
    sbuf_partition_count: Fact[int]
    engines: tuple[str, ...]
    engine_clock_ghz: Fact[tuple[tuple[str, float], ...]]
    engine_peak_fp32_tflops: Fact[tuple[tuple[str, float], ...]]
    dma_engine_count: Fact[int]  # per device
    collectives_core_count: Fact[int]  # per device
    note: str

    @property
    def physical_cores_per_device(self) -> int:
        """Physical NeuronCores of one device, which the driver counts whatever the LNC."""
        return known(self.physical_core_count)

    @property
    def hbm_stack_bytes(self) -> int:
        """The capacity of one memory stack: the device's memory in equal parts."""
        return known(self.device_memory_bytes) // self.hbm_stack_count

    @property
    def cores_per_hbm_stack(self) -> int:
        """Physical cores that share a memory stack."""
        return self.physical_cores_per_device // self.hbm_stack_count

    @property
    def sbuf_bytes_per_partition(self) -> int | None:
        """The part of a core's state buffer (SBUF) that one partition holds."""
        total, count = self.sbuf_bytes_per_core.value, self.sbuf_partition_count.value
        return None if total is None or count is None else total // count

    def checked_lnc(self, lnc: int | None = None) -> int:
        """`lnc`, or the default for None; ValueError for one that the hardware can't have."""
        if lnc is None:
            return self.lnc_default
        if lnc not in self.lnc_supported:
            allowed = " or ".join(map(str, self.lnc_supported))
            msg = f"logical NeuronCore configuration {lnc} is not possible on {self.name}: use {allowed}"
            raise ValueError(msg)
        return lnc

    def neuroncore_version(self, lnc: int | None = None) -> Fact[str]:
        """The version the tools print at this LNC: "v3" or "v3d" on Trainium2; ValueError as `checked_lnc`."""
        return self.neuroncore_version_by_lnc[self.lnc_supported.index(self.checked_lnc(lnc))]

    def peak_flops_per_device(self, dtype: str, sparse: bool = False) -> float | None:
        """Peak operations per second of a device; None when AWS states none for the type."""
        return self.peak_per_device.flops(dtype, sparse)

    def peak_flops_per_physical_core(self, dtype: str, sparse: bool = False) -> float | None:
        """Peak operations per second of a physical core; None when AWS states none for the type."""
        return self.peak_per_physical_core.flops(dtype, sparse)

    def engine_clock_hz(self, engine: str) -> float | None:
        """The clock of an engine ("tensor", "vector", "scalar", "gpsimd"); None where unknown."""
        ghz = dict(self.engine_clock_ghz.value or ()).get(engine)
        return None if ghz is None else ghz * _HZ_PER_GHZ


def known(fact: Fact[int]) -> int:
    """The value of a fact that the loader made sure is known."""
    if fact.value is None:
        msg = f"a fact that must be known has status {fact.status}"
        raise ValueError(msg)
    return fact.value
