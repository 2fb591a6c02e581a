"""Where the devices sit on the PCI bus.

No link leads from a device of the driver to its PCI device, and asking the driver would mean opening it. So the PCI
devices of the family's ids are matched with what the catalog knows of the instance type.
"""

from __future__ import annotations

import os

from neurontools.catalog import DeviceFamily, InstanceType
from neurontools.driver.sysfs.roots import Roots
from neurontools.driver.sysfs.small_file import read_text

MAX_PCI_DEVICES = 4096
_ADDRESS_CHARACTERS = 16


class Placement:
    """Place of one device; `inferred` names the fields that were concluded and not read."""

    __slots__ = ("bdf", "cpu_affinity", "inferred", "numa_node")

    def __init__(
        self, bdf: str | None, cpu_affinity: str | None, numa_node: str | None, inferred: tuple[str, ...]
    ) -> None:
        self.bdf = bdf
        self.cpu_affinity = cpu_affinity
        self.numa_node = numa_node
        self.inferred = inferred


_FIELDS = ("bdf", "cpu_affinity", "numa_node")


def placements(
    roots: Roots, family: DeviceFamily, instance_type: InstanceType | None, driver_indices: list[int]
) -> dict[int, Placement]:
    """The place of each device, by the driver's index.

    The catalog's address counts as read when a PCI device of the right kind is there. Where the catalog has none, the
    PCI devices are taken in order, which is exact for one device and a conclusion for several. Without PCI devices,
    as under a copy of the tree, everything is the catalog's and marked so.
    """
    present = _addresses(roots, family)
    made: dict[int, Placement] = {}
    for position, index in enumerate(driver_indices):
        facts = instance_type.devices[index] if instance_type and index < instance_type.device_count else None
        known = facts.bdf.value if facts else None
        if known in present:
            made[index] = _read(roots, known, certain=facts is not None and facts.bdf.certain)
        elif known is None and len(present) == len(driver_indices):
            made[index] = _read(roots, present[position], certain=len(present) == 1)
        elif facts is not None and not present:
            values = (facts.bdf.value, facts.cpu_affinity.value, facts.numa_node.value)
            inferred = tuple(name for name, value in zip(_FIELDS, values, strict=True) if value is not None)
            made[index] = Placement(*values, inferred)
        else:
            made[index] = Placement(None, None, None, ())
    return made


def _read(roots: Roots, bdf: str, *, certain: bool) -> Placement:
    directory = f"{roots.pci_devices}/{bdf}"
    cpu_affinity = _plain(read_text(f"{directory}/local_cpulist"))
    numa_node = _plain(read_text(f"{directory}/numa_node", 32))
    return Placement(bdf, cpu_affinity, numa_node, () if certain else _FIELDS)


def _plain(text: str | None) -> str | None:
    """A list of numbers as the kernel writes it; None for anything else."""
    return text if text and all(character in "0123456789-," for character in text) else None


def _addresses(roots: Roots, family: DeviceFamily) -> list[str]:
    """The addresses of the PCI devices of the family, ascending."""
    try:
        names = sorted(os.listdir(roots.pci_devices))[:MAX_PCI_DEVICES]  # noqa: PTH208 - pathlib is slow
    except OSError:
        return []
    vendor = f"0x{family.pci.vendor_id}"
    wanted = {f"0x{device_id}" for device_id in family.pci.device_ids}
    return [
        name
        for name in names
        if len(name) <= _ADDRESS_CHARACTERS
        and name.isascii()
        and name.isprintable()
        and read_text(f"{roots.pci_devices}/{name}/vendor", 16) == vendor
        and read_text(f"{roots.pci_devices}/{name}/device", 16) in wanted
    ]
