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
    """How a fact is known."""

    DOCUMENTED = "documented"  # AWS documentation or blog post
    DRIVER = "driver"  # source code of the Neuron driver
    OBSERVED = "observed"  # output of a real host, or of a public API
    INFERRED = "inferred"  # derived from other facts, stated nowhere
    UNKNOWN = "unknown"  # searched for and not found
    NOT_APPLICABLE = "n/a"  # does not exist on this hardware


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value and how it is known. `value` is None exactly if the status is unknown or n/a.

    `source` has IDs of `catalog.sources()`; empty if the origin was not recorded.
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
    """PCI IDs as four lower-case hexadecimal digits. A family may have several device IDs."""

    vendor_id: str
    device_ids: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SysfsStrings:
    """Names of the family in the driver's sysfs tree, which numbers generations differently from the tools."""

    arch_type_device: str  # "NDv2"
    arch_type_core: str  # "NCv2"
    instance_type: str  # "Trn1"
    device_name: str  # "Trainium1"
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeakTflops:
    """Peak rates by data type, in units of 10^12 operations per second; types are spelled as AWS does: "bf16", "cfp8".

    Rates per core are per physical core. On Trainium2 and later their sum is below the device's rate; AWS states both.
    """

    dense: tuple[tuple[str, float], ...]
    sparse: tuple[tuple[str, float], ...]
    status: FactStatus
    source: tuple[str, ...]
    note: str

    def flops(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns operations per second. None if AWS states no rate for the type."""
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
        """Physical NeuronCores of one device, at any LNC."""
        return known_value(self.physical_core_count)

    @property
    def hbm_stack_bytes(self) -> int:
        """Capacity of one HBM stack; all stacks of a device are equal."""
        return known_value(self.device_memory_bytes) // self.hbm_stack_count

    @property
    def cores_per_hbm_stack(self) -> int:
        """Physical cores that share a memory stack."""
        return self.physical_cores_per_device // self.hbm_stack_count

    @property
    def sbuf_bytes_per_partition(self) -> int | None:
        """Size of one partition of a core's state buffer (SBUF)."""
        total, count = self.sbuf_bytes_per_core.value, self.sbuf_partition_count.value
        return None if total is None or count is None else total // count

    def checked_lnc(self, lnc: int | None = None) -> int:
        """Returns `lnc`, or the default for None. Raises ValueError if the hardware does not support it."""
        if lnc is None:
            return self.lnc_default
        if lnc not in self.lnc_supported:
            allowed = " or ".join(map(str, self.lnc_supported))
            msg = f"logical NeuronCore configuration {lnc} is not possible on {self.name}: use {allowed}"
            raise ValueError(msg)
        return lnc

    def neuroncore_version(self, lnc: int | None = None) -> Fact[str]:
        """Returns the version that the tools print at this LNC: on Trainium2 "v3" or "v3d". Raises as `checked_lnc`."""
        return self.neuroncore_version_by_lnc[self.lnc_supported.index(self.checked_lnc(lnc))]

    def peak_flops_per_device(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns peak operations per second of a device. None if AWS states none for the type."""
        return self.peak_per_device.flops(dtype, sparse)

    def peak_flops_per_physical_core(self, dtype: str, sparse: bool = False) -> float | None:
        """Returns peak operations per second of a physical core. None if AWS states none for the type."""
        return self.peak_per_physical_core.flops(dtype, sparse)

    def engine_clock_hz(self, engine: str) -> float | None:
        """Returns the clock of an engine ("tensor", "vector", "scalar", "gpsimd"). None: unknown."""
        ghz = dict(self.engine_clock_ghz.value or ()).get(engine)
        return None if ghz is None else ghz * _HZ_PER_GHZ


def known_value(fact: Fact[int]) -> int:
    """Returns the value of a fact that the reader required to be known."""
    if fact.value is None:
        msg = f"a fact that must be known has status {fact.status}"
        raise ValueError(msg)
    return fact.value


def simulated_serial_number(family: DeviceFamily, device_index: int) -> str | None:
    """Returns 16 hexadecimal digits. They start with ffffffff to distinguish them from real serial numbers.

    None for Inferentia, which has no serial numbers.
    """
    return f"ffffffff{device_index:08x}" if family.generation > 1 else None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Location of one device in the host, in the kernel's format."""

    index: int
    bdf: Fact[str]  # PCI address with domain, "0000:10:1c.0"
    cpu_affinity: Fact[str]  # "0-31,64-95"
    numa_node: Fact[str]  # "1"; "-1" for no node


@dataclass(frozen=True, slots=True)
class UltraServer:
    """The UltraServer that hosts of an instance type can be part of."""

    kind: str  # the driver's platform: pod, pds, max
    name: str
    node_count: int
    device_count: int  # of all nodes together
    node_links: Fact[
        str
    ]  # how NeuronLink joins the nodes: ring (of the devices of one index) or switched (all with all)
    node_link_bytes_per_second_per_device: Fact[int]
    note: str


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One instance type. Prices are for Linux, in US dollars per hour; some types have no published price.

    `physical_core_map[device]` holds the physical core at each logical position of the device, for LNC 1; at LNC n, a
    logical core takes n positions that follow each other. Nodes 1 and 3 of a Trn2 UltraServer use position XOR 6.
    """

    name: str  # "trn1.32xlarge"
    family: DeviceFamily
    device_count: int
    devices: tuple[DeviceFacts, ...]  # by index, device_count of them
    topology: Topology
    topology_standing: Fact[str]  # how `topology` is known; the value is its name in topologies.toml
    physical_core_map: tuple[tuple[int, ...], ...]
    device_index_by_routing_id: tuple[int, ...]  # the driver's table; empty where it has none (Inferentia: probe order)
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
    other_names: tuple[str, ...]  # product names that the driver treats as this type
    note: str

    @property
    def physical_core_count(self) -> int:
        """Physical NeuronCores of the whole host."""
        return self.device_count * self.family.physical_cores_per_device

    @property
    def device_memory_bytes_total(self) -> int:
        """Device memory of the whole host."""
        return self.device_count * known_value(self.family.device_memory_bytes)

    def logical_cores_per_device(self, lnc: int | None = None) -> int:
        """Logical NeuronCores of a device at this LNC (default: the family's); ValueError for an impossible LNC."""
        return self.family.physical_cores_per_device // self.family.checked_lnc(lnc)

    def logical_core_count(self, lnc: int | None = None) -> int:
        """Logical NeuronCores of the host: what neuron-ls counts; ValueError for an impossible LNC."""
        return self.device_count * self.logical_cores_per_device(lnc)


_MOST_NAME_CHARACTERS = 64
_HEXADECIMAL_DIGITS = 16


def ultraserver_node(
    ultraserver: UltraServer | None, index: int | None, node_count: int | None = None
) -> UltraServerNode:
    """Builds the node with this index. `node_count`, if read from the host, overrides the catalog.

    No source states that a ring connects nodes in index order, so its links are inferred.
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
    if not ultraserver.node_links.certain:  # the membership of the type is inferred
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
    """Parses NAME:INDEX into name and index. Raises ValueError."""
    name, _, position = text.rpartition(":")
    if not (_is_name(name) and position.isascii() and position.isdigit() and len(position) < 5):
        raise ValueError(
            f"{excerpt(text, 80)!r} is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with a name "
            f"of up to {_MOST_NAME_CHARACTERS} letters, digits, dots, dashes and underscores"
        )
    return name, int(position)


def check_ultraserver_place(text: str, instance_type: InstanceType) -> tuple[str, int]:
    """Parses NAME:INDEX and checks that the instance type supports it. Raises ValueError with a one-line reason."""
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
    """Returns the driver's server ID for a simulated UltraServer: 16 hexadecimal digits.

    Generated IDs start with ffffffff to distinguish them from real ones.
    """
    if is_server_id(name):
        return name
    from zlib import crc32

    return f"ffffffff{crc32(name.encode()):08x}"


def is_server_id(text: str) -> bool:
    """Whether the text is a server ID of the driver: 16 hexadecimal digits, not all zero."""
    is_hexadecimal = len(text) == _HEXADECIMAL_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return is_hexadecimal and bool(text.strip("0"))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME_CHARACTERS and all(
        letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text
    )
