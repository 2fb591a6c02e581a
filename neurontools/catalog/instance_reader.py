"""Makes an InstanceType of its TOML table."""

from __future__ import annotations

from dataclasses import replace

from neurontools.catalog.fact import Fact, Status
from neurontools.catalog.family import DeviceFamily
from neurontools.catalog.instance_type import DeviceFacts, InstanceType, UltraServer
from neurontools.catalog.reader import Table, parsed, reading
from neurontools.catalog.topology import Topology, TopologyKind

_DEVICE_KEYS = ("bdf", "cpu_affinity", "numa_node")
_UNKNOWN_TEXT: Fact[str] = Fact(None, Status.UNKNOWN)


def read_instance_type(name: str, family: DeviceFamily, table: Table) -> InstanceType:
    """The instance type in one table of `instance_types`, joined with what it refers to in topologies.toml."""
    device_count = table.take("device_count", int)
    topology, topology_standing = _topology(table, device_count)
    return InstanceType(
        name=name,
        family=family,
        device_count=device_count,
        devices=_devices(table, device_count),
        topology=topology,
        topology_standing=topology_standing,
        physical_core_map=_core_map(table, device_count, family.physical_cores_per_device),
        device_index_by_routing_id=_routing(table),
        vcpu_count=table.take_fact("vcpu_count", int),
        host_memory_bytes=table.take_fact("host_memory_bytes", int),
        numa_node_count=table.take_fact("numa_node_count", int),
        neuronlink_bytes_per_second_per_device=table.take_fact("neuronlink_bytes_per_second_per_device", int),
        efa_bits_per_second=table.take_fact("efa_bits_per_second", int),
        local_storage=table.take_fact_or_unknown("local_storage", str),
        on_demand_usd_per_hour=table.take_fact("on_demand_usd_per_hour", float),
        reserved_effective_usd_per_hour=table.take_fact_or_unknown("reserved_effective_usd_per_hour", float),
        capacity_block_usd_per_hour=table.take_fact_or_unknown("capacity_block_usd_per_hour", float),
        spot_example_usd_per_hour=table.take_fact_or_unknown("spot_example_usd_per_hour", float),
        sagemaker_usd_per_hour=table.take_fact_or_unknown("sagemaker_usd_per_hour", float),
        ultraserver=_ultraserver(table),
        other_names=table.take_all("other_names", str) if table.has("other_names") else (),
        note=table.take_text("note"),
    )


def _devices(table: Table, device_count: int) -> tuple[DeviceFacts, ...]:
    """One row per device; without any rows, nothing is known about any device."""
    if not table.has("devices"):
        return tuple(DeviceFacts(i, _UNKNOWN_TEXT, _UNKNOWN_TEXT, _UNKNOWN_TEXT) for i in range(device_count))
    devices = []
    for position, row in enumerate(table.take_tables("devices")):
        index = row.take("index", int)
        if index != position:
            raise row.error("index", f"{index} is out of order")
        values = [row.take(key, str) if row.has(key) else None for key in _DEVICE_KEYS]
        standing = row.take_standing(next((value for value in values if value is not None), None))
        bdf, cpu_affinity, numa_node = (
            _UNKNOWN_TEXT if value is None else replace(standing, value=value) for value in values
        )
        devices.append(DeviceFacts(index, bdf, cpu_affinity, numa_node))
    if len(devices) != device_count:
        raise table.error("devices", f"has {len(devices)} rows for a device_count of {device_count}")
    return tuple(devices)


def _topology(table: Table, device_count: int) -> tuple[Topology, Fact[str]]:
    name = table.take("topology", str)
    with _shared("topologies", name, table, "topology") as shared:
        kind = shared.take("kind", str)
        if kind not in list(TopologyKind):
            raise shared.error("kind", f"{kind!r} is none of {', '.join(TopologyKind)}")
        # A switched fabric has no list: the driver answers none, for any number of devices.
        links = shared.take_rows("connected_to") if shared.has("connected_to") else ((),) * device_count
        try:
            topology = Topology(TopologyKind(kind), links)
        except ValueError as error:
            raise shared.error("connected_to", str(error)) from error
        shared.take_text("order_rule")
        standing = shared.take_standing(name)
    if len(links) != device_count:
        raise table.error("topology", f"{name} links {len(links)} devices, but device_count is {device_count}")
    return topology, standing


def _core_map(table: Table, device_count: int, core_count: int) -> tuple[tuple[int, ...], ...]:
    """The physical core of each logical position, per device; the identity where the driver has no map."""
    if not table.has("core_map"):
        return (tuple(range(core_count)),) * device_count
    name = table.take("core_map", str)
    with _shared("core_maps", name, table, "core_map") as shared:
        rows = shared.take_rows("physical_cores_by_device")
        shared.take_all("source", str)
        shared.take_text("note")
    if len(rows) < device_count or any(sorted(row) != list(range(core_count)) for row in rows):
        raise table.error("core_map", f"{name} does not order {core_count} cores for each of {device_count} devices")
    return rows[:device_count]


def _routing(table: Table) -> tuple[int, ...]:
    if not table.has("routing"):
        return ()
    name = table.take("routing", str)
    with _shared("routing", name, table, "routing") as shared:
        ids = shared.take_all("device_index_by_routing_id", int)
        shared.take_all("source", str)
        shared.take_text("note")
    return ids


def _ultraserver(table: Table) -> UltraServer | None:
    if not table.has("ultraserver"):
        return None
    with table.inner("ultraserver") as inner:
        return UltraServer(
            kind=inner.take("kind", str),
            name=inner.take_text("name"),
            node_count=inner.take("node_count", int),
            device_count=inner.take("device_count", int),
            node_links=inner.take_fact("node_links", str),
            node_link_bytes_per_second_per_device=inner.take_fact("node_link_bytes_per_second_per_device", int),
            note=inner.take_text("note"),
        )


def _shared(group: str, name: str, table: Table, key: str) -> reading:
    """Read one table of topologies.toml, which instance types refer to by name."""
    data = parsed("topologies.toml").get(group, {}).get(name)
    if not isinstance(data, dict):
        raise table.error(key, f"topologies.toml has no {group}.{name}")
    return reading(data, "topologies.toml", f"{group}.{name}")
