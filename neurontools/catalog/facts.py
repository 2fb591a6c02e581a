"""Facts of instance types, device families and UltraServers, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.catalog.topology import Topology
from neurontools.model import UltraServerNode
from neurontools.util.light_imports import Generic, TypeVar
from neurontools.util.terminal import excerpt

T = TypeVar("T")


class FactStatus(StrEnum):
    """The kind of evidence for a fact."""

    DOCUMENTED = "documented"  # stated in AWS documentation or an AWS blog post
    DRIVER = "driver"  # stated in the source code of the Neuron driver
    OBSERVED = "observed"  # seen in the output of a real host or of a public API
    INFERRED = "inferred"  # derived from other facts; no source states it
    UNKNOWN = "unknown"  # a search found no source
    NOT_APPLICABLE = "n/a"  # not applicable: the hardware does not have this property


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value and its evidence. `value` is None exactly if the status is unknown or n/a.

    `source` lists IDs from `catalog.sources()`, and is empty if the origin was not recorded.
    """

    value: T | None
    status: FactStatus
    source: tuple[str, ...] = ()
    note: str = ""

    @property
    def certain(self) -> bool:
        """Whether the value is known and not inferred."""
        return self.value is not None and self.status in _CERTAIN


_CERTAIN = frozenset({FactStatus.DOCUMENTED, FactStatus.DRIVER, FactStatus.OBSERVED})


_FLOPS_PER_TFLOPS = 1e12
_HZ_PER_GHZ = 1e9


@dataclass(frozen=True, slots=True)
class PciIds:
    """PCI vendor and device IDs, each four lower-case hexadecimal digits. A family may have several device IDs."""

    vendor_id: str
    device_ids: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SysfsStrings:
    """Names of a device family in the driver's sysfs tree. The tree and the tools number generations differently."""

    arch_type_device: str  # "NDv2"
    arch_type_core: str  # "NCv2"
    instance_type: str  # "Trn1"
    device_name: str  # "Trainium1"
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeakTflops:
    """Peak rates by data type, in 10^12 operations per second. Type names have AWS's spelling: "bf16", "cfp8".

    A core's rates are those of a physical core. On Trainium2 and later, the sum over all cores is below the device's
    rate; AWS states both.
    """

    dense: tuple[tuple[str, float], ...]
    sparse: tuple[tuple[str, float], ...]
    status: FactStatus
    source: tuple[str, ...]
    note: str

    def flops(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns the rate in operations per second. None if AWS states no rate for the data type."""
        tflops = dict(self.sparse if sparse else self.dense).get(dtype)
        return None if tflops is None else tflops * _FLOPS_PER_TFLOPS


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """One chip family, such as Trainium. Cores are physical unless a name says logical."""

    name: str  # "trainium"
    generation: int  # hardware generation in the driver: 1 to 4
    pci: PciIds
    sysfs: SysfsStrings
    device_type: Fact[str]  # value that neuron-monitor prints as neuron_device_type
    device_version: Fact[str]  # value that neuron-monitor prints as neuron_device_version
    neuroncore_version_by_lnc: tuple[Fact[str], ...]  # NeuronCore version for each LNC in lnc_supported
    physical_core_count: Fact[int]  # number of physical cores of one device; never unknown
    lnc_supported: tuple[int, ...]  # possible numbers of physical cores per logical core
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
        """Number of physical NeuronCores of one device. The LNC does not change it."""
        return required_value(self.physical_core_count)

    @property
    def hbm_stack_bytes(self) -> int:
        """Bytes of one HBM stack. All stacks of a device have the same size."""
        return required_value(self.device_memory_bytes) // self.hbm_stack_count

    @property
    def cores_per_hbm_stack(self) -> int:
        """Number of physical cores that share one HBM stack."""
        return self.physical_cores_per_device // self.hbm_stack_count

    @property
    def sbuf_bytes_per_partition(self) -> int | None:
        """Bytes of one partition of a core's state buffer (SBUF)."""
        total, count = self.sbuf_bytes_per_core.value, self.sbuf_partition_count.value
        return None if total is None or count is None else total // count

    def checked_lnc(self, lnc: int | None = None) -> int:
        """Returns `lnc`, or the family's default LNC for None. Raises ValueError for an unsupported LNC."""
        if lnc is None:
            return self.lnc_default
        if lnc not in self.lnc_supported:
            allowed = " or ".join(map(str, self.lnc_supported))
            msg = f"logical NeuronCore configuration {lnc} is not possible on {self.name}: use {allowed}"
            raise ValueError(msg)
        return lnc

    def neuroncore_version(self, lnc: int | None = None) -> Fact[str]:
        """Returns the NeuronCore version that the Neuron tools print at this LNC.

        On Trainium2, the version is "v3" or "v3d", depending on the LNC. Raises ValueError for an unsupported LNC.
        """
        return self.neuroncore_version_by_lnc[self.lnc_supported.index(self.checked_lnc(lnc))]

    def peak_flops_per_device(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns the peak operations per second of a device. None if AWS states no rate for the data type."""
        return self.peak_per_device.flops(dtype, sparse)

    def peak_flops_per_physical_core(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns the peak operations per second of a physical core. None if AWS states no rate for the data type."""
        return self.peak_per_physical_core.flops(dtype, sparse)

    def engine_clock_hz(self, engine: str) -> float | None:
        """Returns the clock rate of an engine ("tensor", "vector", "scalar" or "gpsimd"). None if unknown."""
        ghz = dict(self.engine_clock_ghz.value or ()).get(engine)
        return None if ghz is None else ghz * _HZ_PER_GHZ


def required_value(fact: Fact[int]) -> int:
    """Returns the value of a fact that the catalog requires to be known. Raises ValueError if it is unknown."""
    if fact.value is None:
        msg = f"a fact that must be known has status {fact.status}"
        raise ValueError(msg)
    return fact.value


def simulated_serial_number(family: DeviceFamily, device_index: int) -> str | None:
    """Returns a serial number for a simulated device; None for Inferentia, which has no serial numbers.

    The number has 16 hexadecimal digits and starts with ffffffff, unlike real ones.
    """
    return f"ffffffff{device_index:08x}" if family.generation > 1 else None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """PCI address, CPU affinity and NUMA node of one device, each in the kernel's format."""

    index: int
    bdf: Fact[str]  # PCI address with its domain, such as "0000:10:1c.0"
    cpu_affinity: Fact[str]  # "0-31,64-95"
    numa_node: Fact[str]  # "1"; "-1" for no node


@dataclass(frozen=True, slots=True)
class UltraServer:
    """One kind of UltraServer. Hosts of an instance type can belong to UltraServers of this kind."""

    kind: str  # the driver's name for this kind of UltraServer
    name: str
    node_count: int
    device_count: int  # of all nodes together
    node_links: Fact[
        str
    ]  # links between nodes: "ring" connects the devices with the same index, "switched" connects all devices
    node_link_bytes_per_second_per_device: Fact[int]
    note: str


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One instance type. Prices are for Linux, in US dollars per hour; some types have no published price.

    `physical_core_map[device]` lists the physical core at each logical position of the device, for LNC 1. At LNC n, a
    logical core takes n consecutive positions. On nodes 1 and 3 of a Trn2 UltraServer, the index into the list is the
    logical position XOR 6.

    `device_index_by_routing_id` is a table of the driver. It is empty for Inferentia, whose driver has no such table
    and numbers devices in probe order.
    """

    name: str  # "trn1.32xlarge"
    family: DeviceFamily
    device_count: int
    devices: tuple[DeviceFacts, ...]  # facts of each device, by device index
    topology: Topology
    topology_evidence: Fact[str]  # evidence for `topology`; its value is a name in topologies.toml
    physical_core_map: tuple[tuple[int, ...], ...]
    device_index_by_routing_id: tuple[int, ...]
    vcpu_count: Fact[int]
    host_memory_bytes: Fact[int]
    numa_node_count: Fact[int]
    neuronlink_bytes_per_second_per_device: Fact[int]
    efa_bits_per_second: Fact[int]
    local_storage: Fact[str]
    on_demand_usd_per_hour: Fact[float]
    reserved_effective_usd_per_hour: Fact[float]
    capacity_block_usd_per_hour: Fact[float]
    spot_example_usd_per_hour: Fact[float]
    sagemaker_usd_per_hour: Fact[float]
    ultraserver: UltraServer | None
    other_names: tuple[str, ...]  # further product names that mean this instance type to the driver
    note: str

    @property
    def physical_core_count(self) -> int:
        """Number of physical NeuronCores of the whole host."""
        return self.device_count * self.family.physical_cores_per_device

    @property
    def device_memory_bytes_total(self) -> int:
        """Bytes of device memory of the whole host."""
        return self.device_count * required_value(self.family.device_memory_bytes)

    def logical_cores_per_device(self, lnc: int | None = None) -> int:
        """Returns the number of logical NeuronCores of a device. Raises ValueError for an unsupported LNC."""
        return self.family.physical_cores_per_device // self.family.checked_lnc(lnc)

    def logical_core_count(self, lnc: int | None = None) -> int:
        """Returns the number of logical NeuronCores of the host, as neuron-ls counts them.

        Raises ValueError for an unsupported LNC.
        """
        return self.device_count * self.logical_cores_per_device(lnc)


_MOST_NAME_CHARACTERS = 64
_HEXADECIMAL_DIGITS = 16


def ultraserver_node(
    ultraserver: UltraServer | None, index: int | None, node_count: int | None = None
) -> UltraServerNode:
    """Builds the UltraServer node with this index.

    If `node_count` was read from the host, it replaces the count of the catalog. The links of a ring are marked as
    inferred, because no source states that a ring connects nodes in index order.
    """
    if ultraserver is None:
        return UltraServerNode(index, node_count)
    named: dict[str, Fact[str] | Fact[int]] = {
        "links": ultraserver.node_links,
        "link_bytes_per_second_per_device": ultraserver.node_link_bytes_per_second_per_device,
    }
    concluded = {name for name, fact in named.items() if fact.value is not None and not fact.certain}
    if ultraserver.node_links.value == "ring":
        concluded.add("links")
    if not ultraserver.node_links.certain:  # the kind of UltraServer is inferred too
        concluded |= {"name"} if node_count is not None else {"name", "node_count"}
    return UltraServerNode(
        index=index,
        node_count=ultraserver.node_count if node_count is None else node_count,
        name=ultraserver.name or None,
        links=ultraserver.node_links.value,
        link_bytes_per_second_per_device=ultraserver.node_link_bytes_per_second_per_device.value,
        inferred_fields=tuple(sorted(concluded)),
    )


def parse_ultraserver_place(text: str) -> tuple[str, int]:
    """Splits NAME:INDEX into the name of an UltraServer and the index of a node. Raises ValueError for other text."""
    name, _, position = text.rpartition(":")
    if not (_is_name(name) and position.isascii() and position.isdigit() and len(position) < 5):
        raise ValueError(
            f"{excerpt(text, 80)!r} is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with a name "
            f"of up to {_MOST_NAME_CHARACTERS} letters, digits, dots, dashes and underscores"
        )
    return name, int(position)


def check_ultraserver_place(text: str, instance_type: InstanceType) -> tuple[str, int]:
    """Parses NAME:INDEX. Raises ValueError, with a one-line reason, if the instance type has no such node.

    The index must be that of a node in an UltraServer of the instance type.
    """
    name, index = parse_ultraserver_place(text)
    ultraserver = instance_type.ultraserver
    if ultraserver is None:
        raise ValueError(
            f"{instance_type.name} is in no UltraServer; simulate a type that is, such as trn2u.48xlarge, or leave it "
            "out"
        )
    if index >= ultraserver.node_count:
        raise ValueError(
            f"there is no node {index}: a {ultraserver.name} has {ultraserver.node_count}; "
            f"give 0 to {ultraserver.node_count - 1}"
        )
    return name, index


def simulated_server_id(name: str) -> str:
    """Returns a server ID for a simulated UltraServer, in the driver's format of 16 hexadecimal digits.

    Returns the name unchanged if it is a server ID. Generated IDs start with ffffffff, unlike real ones.
    """
    if is_server_id(name):
        return name
    from zlib import crc32

    return f"ffffffff{crc32(name.encode()):08x}"


def is_server_id(text: str) -> bool:
    """Returns whether the text has the driver's format of a server ID: 16 hexadecimal digits, not all zero."""
    is_hexadecimal = len(text) == _HEXADECIMAL_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return is_hexadecimal and bool(text.strip("0"))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME_CHARACTERS and all(
        letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text
    )
