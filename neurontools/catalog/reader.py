"""Reads the catalog's tables: device families and instance types."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

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
from neurontools.catalog.topology import Topology, TopologyKind
from neurontools.util.light_imports import TypeVar
from neurontools.util.terminal import excerpt

T = TypeVar("T")

_DATA_DIRECTORY = f"{__file__.rpartition('/')[0]}/data"
_VALUELESS = frozenset({FactStatus.UNKNOWN, FactStatus.NOT_APPLICABLE})


class CatalogDataError(ValueError):
    """A data file of the catalog is invalid. The message names the file and the key."""


class Table:
    """A TOML table whose keys are consumed one by one. Use `open_table`, which rejects leftover keys."""

    def __init__(self, data: Mapping[str, object], file_name: str, path: str = "") -> None:
        self._left = dict(data)
        self._file_name = file_name
        self._path = path

    def error(self, key: str, problem: str) -> CatalogDataError:
        """Builds an error about one key of this table."""
        return CatalogDataError(f"{self._file_name}: {self._key_path(key)}: {problem}")

    @property
    def remaining(self) -> tuple[str, ...]:
        """The keys that were not consumed yet, in file order."""
        return tuple(self._left)

    def has(self, key: str) -> bool:
        """Returns whether the table has the key and it was not consumed yet."""
        return key in self._left

    def pop(self, key: str, kind: type[T]) -> T:
        """Consumes a required key and returns its value, which must have the type `kind`. Converts int to float."""
        if key not in self._left:
            raise self.error(key, "is missing")
        return self._as(kind, self._left.pop(key), key)

    def pop_text(self, key: str) -> str:
        """Consumes an optional key and returns its text; empty if the key is missing."""
        return self.pop(key, str) if self.has(key) else ""

    def pop_array(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """Consumes a required array and returns its elements, which must have the type `kind`."""
        return tuple(self._as(kind, element, key) for element in self.pop(key, list))

    def pop_rows(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Consumes a required array of arrays of integers."""
        return tuple(tuple(self._as(int, n, key) for n in row) for row in self.pop_array(key, list))

    def pop_tables(self, key: str) -> Iterator[Table]:
        """Yields the tables of a required array. The caller must consume all keys of a table before the next table."""
        for position, data in enumerate(self.pop_array(key, dict)):
            with open_table(data, self._file_name, f"{self._key_path(key)}[{position}]") as table:
                yield table

    def pop_rates(self, key: str) -> tuple[tuple[str, float], ...]:
        """Consumes a required table of numbers. Returns (name, number) pairs in file order."""
        rates = self.pop(key, dict)
        return tuple((name, self._as(float, rate, f"{key}.{name}")) for name, rate in rates.items())

    def pop_fact(self, key: str, kind: type[T]) -> Fact[T]:
        """Consumes a required fact {value, status, source, note}. Unknown and n/a facts have no `value`."""
        with self.open_subtable(key) as table:
            value = table.pop("value", kind) if table.has("value") else None
            return table.fact_with(value)

    def pop_fact_or_unknown(self, key: str, kind: type[T]) -> Fact[T]:
        """Consumes an optional fact. Returns an unknown fact if the key is missing."""
        return self.pop_fact(key, kind) if self.has(key) else Fact(None, FactStatus.UNKNOWN)

    def fact_with(self, value: T | None) -> Fact[T]:
        """Returns a Fact with `value` and this table's status, source and note."""
        text = self.pop("status", str)
        if text not in list(FactStatus):
            raise self.error("status", f"{text!r} is none of {', '.join(FactStatus)}")
        status = FactStatus(text)
        if (value is None) != (status in _VALUELESS):
            raise self.error("status", f"{text!r} does not go with {'no value' if value is None else 'a value'}")
        return Fact(value, status, self.pop_array("source", str), self.pop_text("note"))

    def open_subtable(self, key: str) -> open_table:
        """Opens the table under a required key. The caller must consume all its keys."""
        return open_table(self.pop(key, dict), self._file_name, self._key_path(key))

    def finish(self) -> None:
        """Raises CatalogDataError if a key of this table was not consumed."""
        for key in self._left:
            raise self.error(key, "is not a key of this table")

    def _key_path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _as(self, kind: type[T], value: object, key: str) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        # isinstance() would accept a TOML boolean as an integer.
        if type(value) is not kind:
            raise self.error(key, f"{value!r} is not of type {kind.__name__}")
        return value


class open_table:  # noqa: N801 - used like a function; importing contextlib takes longer than reading the catalog
    """Opens one TOML table. Raises CatalogDataError if the `with` block leaves keys unconsumed.

    `path` is the dotted path of the table in its file.
    """

    def __init__(self, data: Mapping[str, object], file_name: str, path: str = "") -> None:
        self._table = Table(data, file_name, path)

    def __enter__(self) -> Table:
        return self._table

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self._table.finish()


@cache
def load_tables(file_name: str) -> dict[str, dict[str, object]]:
    """Parses a data file of the catalog. Callers share the cached result and must not modify it."""
    with open(f"{_DATA_DIRECTORY}/{file_name}", "rb") as file:  # noqa: PTH123 - pathlib is slow
        content = file.read()
    tables = _compiled(file_name, zlib.crc32(content))
    if tables is not None:
        return tables
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as error:
        raise CatalogDataError(f"{file_name}: {error}") from error


def _compiled(file_name: str, crc32: int) -> dict[str, dict[str, object]] | None:
    """Returns the tables that scripts/compile-catalog wrote. None if they are missing or the data file has changed."""
    try:
        # Uses __import__, because importing importlib takes long.
        module = __import__(f"neurontools.catalog.compiled.{file_name.removesuffix('.toml')}", fromlist=["TABLES"])
    except ImportError:
        return None
    tables: dict[str, dict[str, object]] = module.TABLES
    return tables if crc32 == module.CRC32 else None


def read_family(name: str, table: Table) -> DeviceFamily:
    """Reads a device family from the `family` table of its file."""
    if table.pop("name", str) != name:
        raise table.error("name", f"must be {name!r}, as the file is called")
    lnc_supported = table.pop_array("lnc_supported", int)
    with table.open_subtable("neuroncore_version") as versions:
        by_lnc = tuple(versions.pop_fact(f"lnc{lnc}", str) for lnc in lnc_supported)
    with table.open_subtable("pci") as pci:
        pci_ids = PciIds(pci.pop("vendor_id", str), pci.pop_array("device_ids", str), pci.pop_array("source", str))
    with table.open_subtable("sysfs") as sysfs:
        sysfs_strings = SysfsStrings(
            arch_type_device=sysfs.pop("arch_type_device", str),
            arch_type_core=sysfs.pop("arch_type_core", str),
            instance_type=sysfs.pop("instance_type", str),
            device_name=sysfs.pop("device_name", str),
            source=sysfs.pop_array("source", str),
        )
    family = DeviceFamily(
        name=name,
        generation=table.pop("generation", int),
        pci=pci_ids,
        sysfs=sysfs_strings,
        device_type=table.pop_fact("device_type", str),
        device_version=table.pop_fact("device_version", str),
        neuroncore_version_by_lnc=by_lnc,
        physical_core_count=_require_known("physical_core_count", table),
        lnc_supported=lnc_supported,
        lnc_default=table.pop("lnc_default", int),
        device_memory_bytes=_require_known("device_memory_bytes", table),
        hbm_kind=table.pop("hbm_kind", str),
        hbm_stack_count=table.pop("hbm_stack_count", int),
        memory_bandwidth_bytes_per_second=table.pop_fact("memory_bandwidth_bytes_per_second", int),
        peak_per_device=_peak("peak_tflops_per_device", table),
        peak_per_physical_core=_peak("peak_tflops_per_physical_core", table),
        sbuf_bytes_per_core=table.pop_fact("sbuf_bytes_per_core", int),
        psum_bytes_per_core=table.pop_fact("psum_bytes_per_core", int),
        sbuf_partition_count=table.pop_fact("sbuf_partition_count", int),
        engines=table.pop_array("engines", str),
        engine_clock_ghz=_rates("engine_clock_ghz", table),
        engine_peak_fp32_tflops=_rates("engine_peak_fp32_tflops", table),
        dma_engine_count=table.pop_fact("dma_engine_count", int),
        collectives_core_count=table.pop_fact("collectives_core_count", int),
        note=table.pop_text("note"),
    )
    if family.lnc_default not in lnc_supported:
        raise table.error("lnc_default", f"{family.lnc_default} is none of lnc_supported")
    return family


def _require_known(key: str, table: Table) -> Fact[int]:
    fact = table.pop_fact(key, int)
    if fact.value is None:
        raise table.error(key, "must have a value")
    return fact


def _peak(key: str, table: Table) -> PeakTflops:
    with table.open_subtable(key) as peak:
        dense = peak.pop_rates("dense")
        sparse = peak.pop_rates("sparse") if peak.has("sparse") else ()
        standing = peak.fact_with(dense)
        return PeakTflops(dense, sparse, standing.status, standing.source, standing.note)


def _rates(key: str, table: Table) -> Fact[tuple[tuple[str, float], ...]]:
    with table.open_subtable(key) as fact:
        return fact.fact_with(fact.pop_rates("value") if fact.has("value") else None)


_DEVICE_KEYS = ("bdf", "cpu_affinity", "numa_node")
_UNKNOWN_TEXT: Fact[str] = Fact(None, FactStatus.UNKNOWN)


def read_instance_type(name: str, family: DeviceFamily, table: Table) -> InstanceType:
    """Reads an instance type, and the tables of topologies.toml that it names."""
    device_count = table.pop("device_count", int)
    topology, topology_standing = _topology(table, device_count)
    return InstanceType(
        name=name,
        family=family,
        device_count=device_count,
        devices=_devices(table, device_count),
        topology=topology,
        topology_evidence=topology_standing,
        physical_core_map=_core_map(table, device_count, family.physical_cores_per_device),
        device_index_by_routing_id=_routing(table),
        vcpu_count=table.pop_fact("vcpu_count", int),
        host_memory_bytes=table.pop_fact("host_memory_bytes", int),
        numa_node_count=table.pop_fact("numa_node_count", int),
        neuronlink_bytes_per_second_per_device=table.pop_fact("neuronlink_bytes_per_second_per_device", int),
        efa_bits_per_second=table.pop_fact("efa_bits_per_second", int),
        local_storage=table.pop_fact_or_unknown("local_storage", str),
        on_demand_usd_per_hour=table.pop_fact("on_demand_usd_per_hour", float),
        reserved_effective_usd_per_hour=table.pop_fact_or_unknown("reserved_effective_usd_per_hour", float),
        capacity_block_usd_per_hour=table.pop_fact_or_unknown("capacity_block_usd_per_hour", float),
        spot_example_usd_per_hour=table.pop_fact_or_unknown("spot_example_usd_per_hour", float),
        sagemaker_usd_per_hour=table.pop_fact_or_unknown("sagemaker_usd_per_hour", float),
        ultraserver=_ultraserver(table),
        other_names=table.pop_array("other_names", str) if table.has("other_names") else (),
        note=table.pop_text("note"),
    )


def _devices(table: Table, device_count: int) -> tuple[DeviceFacts, ...]:
    """Reads the facts of each device. All facts are unknown if the table has no `devices` array."""
    if not table.has("devices"):
        return tuple(DeviceFacts(i, _UNKNOWN_TEXT, _UNKNOWN_TEXT, _UNKNOWN_TEXT) for i in range(device_count))
    devices = []
    for position, row in enumerate(table.pop_tables("devices")):
        index = row.pop("index", int)
        if index != position:
            raise row.error("index", f"{index} is out of order")
        values = [row.pop(key, str) if row.has(key) else None for key in _DEVICE_KEYS]
        standing = row.fact_with(next((value for value in values if value is not None), None))
        bdf, cpu_affinity, numa_node = (
            _UNKNOWN_TEXT if value is None else replace(standing, value=value) for value in values
        )
        devices.append(DeviceFacts(index, bdf, cpu_affinity, numa_node))
    if len(devices) != device_count:
        raise table.error("devices", f"has {len(devices)} rows for a device_count of {device_count}")
    return tuple(devices)


def _topology(table: Table, device_count: int) -> tuple[Topology, Fact[str]]:
    name = table.pop("topology", str)
    with _shared("topologies", name, table, "topology") as shared:
        kind = shared.pop("kind", str)
        if kind not in list(TopologyKind):
            raise shared.error("kind", f"{kind!r} is none of {', '.join(TopologyKind)}")
        # A switched fabric has no neighbour lists; the driver reports none.
        links = shared.pop_rows("connected_to") if shared.has("connected_to") else ((),) * device_count
        try:
            topology = Topology(TopologyKind(kind), links)
        except ValueError as error:
            raise shared.error("connected_to", str(error)) from error
        shared.pop_text("order_rule")
        standing = shared.fact_with(name)
    if len(links) != device_count:
        raise table.error("topology", f"{name} links {len(links)} devices, but device_count is {device_count}")
    return topology, standing


def _core_map(table: Table, device_count: int, core_count: int) -> tuple[tuple[int, ...], ...]:
    """Reads the physical core at each logical position of each device. Without a map, core i is at position i."""
    if not table.has("core_map"):
        return (tuple(range(core_count)),) * device_count
    name = table.pop("core_map", str)
    with _shared("core_maps", name, table, "core_map") as shared:
        rows = shared.pop_rows("physical_cores_by_device")
        shared.pop_array("source", str)
        shared.pop_text("note")
    if len(rows) < device_count or any(sorted(row) != list(range(core_count)) for row in rows):
        raise table.error("core_map", f"{name} does not order {core_count} cores for each of {device_count} devices")
    return rows[:device_count]


def _routing(table: Table) -> tuple[int, ...]:
    if not table.has("routing"):
        return ()
    name = table.pop("routing", str)
    with _shared("routing", name, table, "routing") as shared:
        ids = shared.pop_array("device_index_by_routing_id", int)
        shared.pop_array("source", str)
        shared.pop_text("note")
    return ids


def _ultraserver(table: Table) -> UltraServer | None:
    if not table.has("ultraserver"):
        return None
    with table.open_subtable("ultraserver") as inner:
        return UltraServer(
            kind=inner.pop("kind", str),
            name=inner.pop_text("name"),
            node_count=inner.pop("node_count", int),
            device_count=inner.pop("device_count", int),
            node_links=inner.pop_fact("node_links", str),
            node_link_bytes_per_second_per_device=inner.pop_fact("node_link_bytes_per_second_per_device", int),
            note=inner.pop_text("note"),
        )


def _shared(group: str, name: str, table: Table, key: str) -> open_table:
    """Opens a table of topologies.toml by name."""
    data = load_tables("topologies.toml").get(group, {}).get(name)
    if not isinstance(data, dict):
        raise table.error(key, f"topologies.toml has no {group}.{name}")
    return open_table(data, "topologies.toml", f"{group}.{name}")


PEAK_DTYPE = "bf16"
"""Data type of the peak for model FLOPs utilization (MFU), because the data type in use is not reported."""


class UnknownInstanceType(ValueError):
    """The catalog lacks an instance type. The message suggests similar names and the command that lists all."""


def names() -> tuple[str, ...]:
    """Returns the names of all instance types, in the order of index.toml.

    The order is by series (inf1, inf2, trn1, trn1n, trn2, trn3), then by size.
    """
    return tuple(_family_by_instance_type())


def family_names() -> tuple[str, ...]:
    """Returns the names of all device families, in the order of index.toml."""
    return tuple(dict.fromkeys(_family_by_instance_type().values()))


@cache
def load(name: str) -> InstanceType:
    """Loads an instance type. Raises UnknownInstanceType for an unknown name, CatalogDataError for invalid data."""
    family_name = _family_by_instance_type().get(name)
    if family_name is None:
        raise UnknownInstanceType(_unknown_text(name))
    file_name = f"{family_name}.toml"
    # The file has all instance types of the family; only the requested one is read and checked.
    table = {key: value for key, value in load_tables(file_name).get("instance_types", {}).items() if key == name}
    with open_table(table, file_name, "instance_types") as instance_types:
        with instance_types.open_subtable(name) as data:
            return read_instance_type(name, load_family(family_name), data)


@cache
def load_family(name: str) -> DeviceFamily:
    """Loads a device family. Raises ValueError for an unknown name, CatalogDataError for invalid data."""
    if name not in family_names():
        msg = f'no device family "{name}" is known: there are {", ".join(family_names())}'
        raise ValueError(msg)
    with open_table(load_tables(f"{name}.toml"), f"{name}.toml") as file:
        file.pop("instance_types", dict)
        with file.open_subtable("family") as table:
            return read_family(name, table)


@lru_cache(maxsize=8)
def peak_flops_per_core(instance_type: str) -> float | None:
    """Returns the bf16 peak of a physical core in operations per second. None if unknown."""
    try:
        return load(instance_type).family.peak_flops_per_physical_core(PEAK_DTYPE)
    except UnknownInstanceType:  # a newer daemon may report a type that this catalog lacks
        return None


@lru_cache(maxsize=8)
def on_demand_usd_per_hour(instance_type: str) -> float | None:
    """Returns the on-demand list price of an instance in US dollars per hour. None if unknown."""
    try:
        return load(instance_type).on_demand_usd_per_hour.value
    except UnknownInstanceType:
        return None


def peak_flops_per_logical_core(instance_type: str, lnc: int | None = None) -> float | None:
    """Returns the bf16 peak of a logical core in operations per second.

    `lnc` is by default that of the family. Returns None if the peak is unknown or the hardware does not support `lnc`.
    """
    physical = peak_flops_per_core(instance_type)
    if physical is None:
        return None
    try:
        return physical * load(instance_type).family.checked_lnc(lnc)
    except ValueError:
        return None


def sources() -> Mapping[str, str]:
    """Returns the descriptions of all sources, by the IDs in `Fact.source`."""
    from types import MappingProxyType

    return MappingProxyType(dict(_texts("sources.toml", "sources")))


@cache
def _family_by_instance_type() -> dict[str, str]:
    return dict(_texts("index.toml", "instance_types"))


def _texts(file_name: str, key: str) -> list[tuple[str, str]]:
    """Reads a file that has a single table of strings. Returns its (key, string) pairs in file order."""
    with open_table(load_tables(file_name), file_name) as file, file.open_subtable(key) as table:
        return [(name, table.pop(name, str)) for name in table.remaining]


def _unknown_text(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.6)
    suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
    shown = excerpt(name, 60)
    return f'no instance type "{shown}" is known{suggestion} (list them with: neurond --list-instance-types)'
