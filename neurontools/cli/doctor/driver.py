"""What of the Neuron driver is there: devices on the PCI bus, the module, its tree, its device files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neurontools import catalog
from neurontools.cli.doctor.check import Check, Level, Place
from neurontools.driver.devices import list_device_directories
from neurontools.driver.environment import Roots
from neurontools.driver.inventory import read_host_snapshot
from neurontools.driver.sysfs_files import read_text
from neurontools.util.errors import UserError
from neurontools.util.units import ranges_text

AREA = "driver"
_MOST_PCI_DEVICES = 4096


def examine(place: Place) -> Iterator[Check]:
    """What is there, and what is missing."""
    roots = place.roots
    on_bus = _on_bus(roots)
    version = driver_version(roots)
    if not roots.has_devices:
        yield from _without_devices(on_bus, version)
        return
    directories = list_device_directories(roots)
    yield Check(AREA, Level.OK, f"Neuron driver {version or 'of an unknown version'}, devices: {len(directories)}")
    if on_bus > len(directories):
        yield Check(
            AREA,
            Level.PROBLEM,
            f"{on_bus} devices on the PCI bus, {len(directories)} shown by the driver",
            "see dmesg for its failure; stop and start the instance to get another host",
        )
    yield from _files(roots, [directory.index for directory in directories])
    try:
        snapshot = read_host_snapshot(roots)
    except UserError as error:
        yield Check(AREA, Level.PROBLEM, str(error))
        return
    for warning in snapshot.warnings if snapshot is not None else ():
        yield Check(AREA, Level.NOTE, warning)


def driver_version(roots: Roots) -> str | None:
    """The version of the loaded driver; None where none is loaded."""
    return read_text(roots.driver_version, 64) or None


def _without_devices(on_bus: int, version: str | None) -> Iterator[Check]:
    if version is not None:
        yield Check(
            AREA,
            Level.PROBLEM,
            f"Neuron driver {version} is loaded and shows no device",
            "see dmesg for its failure; in a container: give it /dev/neuron* and the host's /sys",
        )
    elif on_bus:
        yield Check(
            AREA,
            Level.PROBLEM,
            f"{on_bus} Neuron devices on the PCI bus, and no driver is loaded",
            "modprobe neuron; is the package aws-neuronx-dkms installed for this kernel?",
        )
    else:
        yield Check(AREA, Level.OK, "no Neuron device on this host; simulate one with neurond --simulate trn1.32xlarge")


def _on_bus(roots: Roots) -> int:
    """How many PCI devices are Neuron devices of any family."""
    families = [catalog.load_family(name) for name in catalog.family_names()]
    wanted = {(f"0x{family.pci.vendor_id}", f"0x{device}") for family in families for device in family.pci.device_ids}
    try:
        names = sorted(os.listdir(roots.pci_devices))[:_MOST_PCI_DEVICES]  # noqa: PTH208
    except OSError:
        return 0
    return sum(
        (read_text(f"{roots.pci_devices}/{name}/vendor", 16), read_text(f"{roots.pci_devices}/{name}/device", 16))
        in wanted
        for name in names
    )


def _files(roots: Roots, indices: list[int]) -> Iterator[Check]:
    """The device files, and whether this user may open them; none is opened."""
    paths = {index: f"{roots.dev}/neuron{index}" for index in indices}
    missing = [index for index, path in paths.items() if not Path(path).exists()]
    closed = [index for index, path in paths.items() if index not in missing and not os.access(path, os.R_OK | os.W_OK)]
    if missing:
        yield Check(
            AREA,
            Level.PROBLEM,
            f"no device file of devices {ranges_text(missing)} in {roots.dev}",
            "udevadm trigger as root makes them; in a container: give it the files",
        )
    if closed:
        yield Check(
            AREA,
            Level.PROBLEM,
            f"this user may not open the files of devices {ranges_text(closed)} in {roots.dev}",
            "set their group and mode by an udev rule, and add the user to that group",
        )
