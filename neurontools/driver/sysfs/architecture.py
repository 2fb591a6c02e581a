"""Which instance type this is, and which chips it has: from the firmware, the driver and the catalog."""

from __future__ import annotations

from neurontools import catalog
from neurontools.catalog import DeviceFamily, InstanceType
from neurontools.driver.sysfs.device_directory import DeviceDirectory
from neurontools.driver.sysfs.file_table import ARCH_TYPE, DEVICE_NAME, INSTANCE_TYPE
from neurontools.driver.sysfs.roots import Roots
from neurontools.driver.sysfs.small_file import read_text
from neurontools.util.errors import UserError
from neurontools.util.terminal import excerpt


class Architecture:
    """What kind of host this is.

    `instance_type` holds the catalog's facts, None for a type it doesn't know. `name` is what to call the type, only
    the family where the size isn't known; `name_is_inferred` when the firmware doesn't tell and the devices had to.
    """

    __slots__ = ("family", "instance_type", "name", "name_is_inferred")

    def __init__(self, family: DeviceFamily, name: str, instance_type: InstanceType | None, inferred: bool) -> None:
        self.family = family
        self.name = name
        self.instance_type = instance_type
        self.name_is_inferred = inferred


def architecture_of(roots: Roots, directories: list[DeviceDirectory], told: str | None = None) -> Architecture:
    """The kind of this host. `told`: the instance type as the metadata service says it; UserError for unknown chips."""
    product = told or read_text(f"{roots.dmi}/product_name", 128) or ""
    named = _catalog_entry(product)
    # Firmware and first device agree nearly always; only where they don't, all devices have to be asked.
    if named is not None and directories and _score(named.family, _strings(directories[0])) == _FULL_SCORE:
        return Architecture(named.family, product, named, inferred=False)
    strings = [_strings(directory) for directory in directories]
    family = _family(strings, named)
    if family is None:
        if named is None:
            shown = excerpt(", ".join(sorted({text for row in strings for text in row if text})), 80) or "nothing"
            raise UserError(
                f"the devices under {roots.devices} are of no architecture this version knows (they say {shown}); "
                "update neurontools, or check that this is the driver's tree and may be read"
            )
        family = named.family
    if named is not None and named.family.name == family.name:
        return Architecture(family, product, named, inferred=False)
    if product.startswith(family.sysfs.instance_type.lower()):  # a size the catalog doesn't know
        return Architecture(family, excerpt(product, 64), None, inferred=False)
    fitting = _fitting(family, len(directories))
    # Types of one family and size differ in their network, not in their devices: the first has the facts of all.
    name = fitting[0].name if len(fitting) == 1 else family.sysfs.instance_type.lower()
    return Architecture(family, name, fitting[0] if fitting else None, inferred=True)


_Strings = tuple[str | None, str | None, str | None]


def _strings(directory: DeviceDirectory) -> _Strings:
    return (
        read_text(directory.place(INSTANCE_TYPE), 64),
        read_text(directory.place(DEVICE_NAME), 64),
        read_text(directory.place(ARCH_TYPE), 64),
    )


def _family(strings: list[_Strings], named: InstanceType | None) -> DeviceFamily | None:
    """The family most devices say they are of: all devices of a host are alike, so one that can't be read is too."""
    votes: dict[str, int] = {}
    first = (named.family.name,) if named else ()  # most likely, and reading the facts of a family takes time
    for name in dict.fromkeys((*first, *catalog.family_names())):
        family = catalog.load_family(name)
        if score := sum(_score(family, row) for row in strings):
            votes[name] = score
        if votes.get(name, 0) >= _FULL_SCORE * len(strings) > 0:
            break
    return catalog.load_family(max(votes, key=votes.__getitem__)) if votes else None


_FULL_SCORE = 2


def _score(family: DeviceFamily, strings: _Strings) -> int:
    """How well what a device says of itself fits a family: 0 to _FULL_SCORE."""
    sysfs = family.sysfs
    instance_type, device_name, arch_type = strings
    # The architecture alone is ambiguous: Inferentia2 and Trainium2 are both NDv3.
    if sysfs.instance_type != instance_type and sysfs.device_name != device_name:
        return 0
    return 1 + (sysfs.arch_type_device == arch_type)


def _catalog_entry(product: str) -> InstanceType | None:
    if product in catalog.names():
        return catalog.load(product)
    family = product.partition(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz-")
    if not family:
        return None
    for name in catalog.names():  # a product name that the driver treats like one we know
        if name.startswith(family) and product in catalog.load(name).other_names:
            return catalog.load(name)
    return None


def _fitting(family: DeviceFamily, device_count: int) -> list[InstanceType]:
    """The instance types with so many devices of this family."""
    prefix = family.sysfs.instance_type.lower()
    types = [catalog.load(name) for name in catalog.names() if name.startswith(prefix)]
    return [kind for kind in types if kind.family.name == family.name and kind.device_count == device_count]
