"""An instance type: which devices a host of this type has, how they are linked, and what surrounds them."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.catalog.fact import Fact
from neurontools.catalog.family import DeviceFamily, known
from neurontools.catalog.topology import Topology


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
        return self.device_count * known(self.family.device_memory_bytes)

    def logical_cores_per_device(self, lnc: int | None = None) -> int:
        """Logical NeuronCores of a device at this LNC (default: the family's); ValueError for an impossible LNC."""
        return self.family.physical_cores_per_device // self.family.checked_lnc(lnc)

    def logical_core_count(self, lnc: int | None = None) -> int:
        """Logical NeuronCores of the host: what neuron-ls counts; ValueError for an impossible LNC."""
        return self.device_count * self.logical_cores_per_device(lnc)
