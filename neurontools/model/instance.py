"""The instance: what kind of host the devices sit in."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing


@dataclass(frozen=True, slots=True)
class UltraServerNode:
    """The host as a node of an UltraServer, which is several hosts whose devices NeuronLink joins.

    `links` says how: "ring", in which each device is linked to those of its index on the node before and the one after,
    or "switched", where all devices reach each other in a hop. Such links are not in `Device.connected_to`.
    """

    index: int | None  # of this node, from 0
    node_count: int | None
    name: str | None = None  # "Trn2 UltraServer"
    links: str | None = None
    link_bytes_per_second_per_device: int | None = None
    inferred_fields: tuple[str, ...] = ()  # as in Device


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity and shape of the host. A fact that is not known is None."""

    instance_type: str
    instance_id: str | None
    device_count: int
    physical_cores_per_device: int
    logical_neuroncore_config: int  # default of this host: physical cores per logical core
    logical_neuroncore_configs: tuple[int, ...]  # those the hardware can have
    device_memory_bytes: int
    hbm_stack_bytes: int
    topology: str  # single, line, ring, torus_2d, switched
    device_type: str | None = None  # as neuron-monitor names it: trainium, inferentia2, trainium2
    device_version: str | None = None  # "v2"
    neuroncore_version: str | None = None  # under the default LNC: "v2", "v3d"
    driver_version: str | None = None
    instance_name: str | None = None
    availability_zone: str | None = None
    availability_zone_id: str | None = None
    region: str | None = None
    ami_id: str | None = None
    subnet_id: str | None = None
    ultraserver_id: str | None = None
    inferred_fields: tuple[str, ...] = ()  # as in Device
    expected_device_indices: tuple[int, ...] = ()
    """Devices that whoever reads here should have: all of the instance, in a container those it was given. Those of
    them that are not in the snapshot are missing. Empty: not known.
    """
    foreign_device_count: int = 0  # devices that the driver shows and this reader was not given
    fileless_device_indices: tuple[int, ...] = ()  # of those expected: shown by the driver, their device file is gone
    ultraserver_node: UltraServerNode | None = None  # None: not one, or not known to be one

    __repr__ = showing(
        "instance_type", "instance_id", "device_count", "physical_cores_per_device", "logical_neuroncore_config"
    )
