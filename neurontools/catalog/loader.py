"""Finds instance types and families by name; a data file is read once, and only when asked for something in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

from neurontools.catalog.family import DeviceFamily
from neurontools.catalog.family_reader import read_family
from neurontools.catalog.instance_reader import read_instance_type
from neurontools.catalog.instance_type import InstanceType
from neurontools.catalog.reader import parsed, reading
from neurontools.util.terminal import excerpt

PEAK_DTYPE = "bf16"
"""The data type whose peak model FLOPs utilization (MFU) is a share of: nobody reports the data type in use."""


class UnknownInstanceType(ValueError):
    """There is no instance type of this name; the text names it, the near matches, and how to list all."""


def names() -> tuple[str, ...]:
    """All instance types, in the order of index.toml: inf1, inf2, trn1, trn1n, trn2, trn3, by size."""
    return tuple(_family_by_instance_type())


def family_names() -> tuple[str, ...]:
    """All device families, in the order in which `names` first needs them."""
    return tuple(dict.fromkeys(_family_by_instance_type().values()))


@cache
def load(name: str) -> InstanceType:
    """The instance type of this name; UnknownInstanceType when there is none, CatalogDataError for wrong data."""
    family_name = _family_by_instance_type().get(name)
    if family_name is None:
        raise UnknownInstanceType(_unknown_text(name))
    file_name = f"{family_name}.toml"
    # The file holds the whole family: only this one table of it is checked here.
    table = {key: value for key, value in parsed(file_name).get("instance_types", {}).items() if key == name}
    with reading(table, file_name, "instance_types") as instance_types:
        with instance_types.inner(name) as data:
            return read_instance_type(name, load_family(family_name), data)


@cache
def load_family(name: str) -> DeviceFamily:
    """The device family of this name; ValueError when there is none, CatalogDataError when its data is wrong."""
    if name not in family_names():
        msg = f'no device family "{name}" is known: there are {", ".join(family_names())}'
        raise ValueError(msg)
    with reading(parsed(f"{name}.toml"), f"{name}.toml") as file:
        file.take("instance_types", dict)
        with file.inner("family") as table:
            return read_family(name, table)


@lru_cache(maxsize=8)
def peak_flops_per_core(instance_type: str) -> float | None:
    """Operations per second of a physical core of this instance type at most, for PEAK_DTYPE; None where unknown."""
    try:
        return load(instance_type).family.peak_flops_per_physical_core(PEAK_DTYPE)
    except UnknownInstanceType:  # of a daemon that knows more than this version
        return None


def peak_flops_per_logical_core(instance_type: str, lnc: int | None = None) -> float | None:
    """The same of a logical core at this LNC (None: the default there); None too where the hardware can't have it."""
    physical = peak_flops_per_core(instance_type)
    if physical is None:
        return None
    try:
        return physical * load(instance_type).family.checked_lnc(lnc)
    except ValueError:
        return None


def sources() -> Mapping[str, str]:
    """What each source id in the facts stands for."""
    from types import MappingProxyType

    return MappingProxyType(dict(_texts("sources.toml", "sources")))


@cache
def _family_by_instance_type() -> dict[str, str]:
    return dict(_texts("index.toml", "instance_types"))


def _texts(file_name: str, key: str) -> list[tuple[str, str]]:
    """The pairs of a file that is one table of texts, in the order of the file."""
    with reading(parsed(file_name), file_name) as file, file.inner(key) as table:
        return [(name, table.take(name, str)) for name in table.remaining]


def _unknown_text(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.6)
    suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
    shown = excerpt(name, 60)
    return f'no instance type "{shown}" is known{suggestion} (list them with: neurond --list-instance-types)'
