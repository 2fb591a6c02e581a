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
    """How a value is known."""

    DOCUMENTED = "documented"  # AWS says so in its documentation or a blog post
    DRIVER = "driver"  # read in the source of the Neuron driver
    OBSERVED = "observed"  # printed by a real machine, or listed by a public API
    INFERRED = "inferred"  # concluded from other facts; nobody has stated it
    UNKNOWN = "unknown"  # looked for and not found
    NOT_APPLICABLE = "n/a"  # the hardware has no such thing


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value and its standing. `value` is None exactly when the status is unknown or n/a.

    `source` holds ids that `catalog.sources()` explains; it is empty where the origin was not written down.
    """

    value: T | None
    status: FactStatus
    source: tuple[str, ...] = ()
    note: str = ""

    @property
    def certain(self) -> bool:
        """Whether the value is known and was stated or seen, not concluded."""
        return self.value is not None and self.status in _CERTAIN


_CERTAIN = frozenset({FactStatus.DOCUMENTED, FactStatus.DRIVER, FactStatus.OBSERVED})


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
    status: FactStatus
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
        return known_value(self.physical_core_count)

    @property
    def hbm_stack_bytes(self) -> int:
        """The capacity of one memory stack: the device's memory in equal parts."""
        return known_value(self.device_memory_bytes) // self.hbm_stack_count

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


def known_value(fact: Fact[int]) -> int:
    """The value of a fact that the loader made sure is known."""
    if fact.value is None:
        msg = f"a fact that must be known has status {fact.status}"
        raise ValueError(msg)
    return fact.value


def simulated_serial_number(family: DeviceFamily, device_index: int) -> str | None:
    """16 hexadecimal digits, as the driver writes them; all begin with ffffffff, so that none passes for real.

    None for Inferentia, which has none.
    """
    return f"ffffffff{device_index:08x}" if family.generation > 1 else None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Where one device sits in the host, as the kernel prints it."""

    index: int
    bdf: Fact[str]  # PCI address with domain, "0000:10:1c.0"
    cpu_affinity: Fact[str]  # "0-31,64-95"
    numa_node: Fact[str]  # "1"; "-1" where the kernel knows no node


@dataclass(frozen=True, slots=True)
class UltraServer:
    """The UltraServer that hosts of this type can be nodes of."""

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
    """One instance type. Prices are for Linux, in US dollars an hour; a list price is not published for every type.

    `physical_core_map[device]` holds the physical core at each logical position of the device, for LNC 1; at LNC n, a
    logical core takes n positions that follow each other. Nodes 1 and 3 of a Trn2 UltraServer use position XOR 6.
    """

    name: str  # "trn1.32xlarge"
    family: DeviceFamily
    device_count: int
    devices: tuple[DeviceFacts, ...]  # by index, device_count of them
    topology: Topology
    topology_standing: Fact[str]  # how surely `topology` is known; the value is its name in topologies.toml
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
    other_names: tuple[str, ...]  # product names that the driver treats alike
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
    """The node of this index; `node_count`, where it was read, goes before that of the catalog.

    That the nodes of a ring follow each other by their index is nowhere stated, so such links are inferred.
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
    if not ultraserver.node_links.certain:  # that the type is a node of this UltraServer is concluded
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
    """The name and the index of NAME:INDEX; ValueError where it is not so written."""
    name, _, position = text.rpartition(":")
    if not (_is_name(name) and position.isascii() and position.isdigit() and len(position) < 5):
        raise ValueError(
            f"{excerpt(text, 80)!r} is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with a name "
            f"of up to {_MOST_NAME_CHARACTERS} letters, digits, dots, dashes and underscores"
        )
    return name, int(position)


def check_ultraserver_place(text: str, instance_type: InstanceType) -> tuple[str, int]:
    """The name and the index that NAME:INDEX asks for; ValueError says in a line why this type can't have it."""
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
    """How the driver's tree names an UltraServer of this name: 16 hexadecimal digits.

    Those that are made up begin with ffffffff, so that none passes for real.
    """
    if is_server_id(name):
        return name
    from zlib import crc32

    return f"ffffffff{crc32(name.encode()):08x}"


def is_server_id(text: str) -> bool:
    """Whether this is the id of an UltraServer as the driver writes it; zeros stand for none."""
    is_hexadecimal = len(text) == _HEXADECIMAL_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return is_hexadecimal and bool(text.strip("0"))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME_CHARACTERS and all(
        letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text
    )
