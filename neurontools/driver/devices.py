"""Finds the devices that the driver shows: their directories, instance type, PCI address and NUMA node."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from neurontools import catalog
from neurontools.driver import sysfs_files
from neurontools.driver.environment import Roots
from neurontools.driver.sysfs_files import read_text, read_whole_file
from neurontools.util.errors import UserError
from neurontools.util.terminal import excerpt

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from neurontools.catalog import DeviceFamily, InstanceType
    from neurontools.driver.sysfs_layout import FileLocator


MAX_DEVICES = 64  # the driver's own limit
MAX_CORES = 64
_DEVICE, _CORE = "neuron", "neuron_core"
_MAX_MOUNTINFO_BYTES = 4 * 2**20  # large, because mountinfo of a Kubernetes node lists the mounts of all containers


@dataclass(eq=False, slots=True)
class DeviceDirectory:
    """The sysfs directory of one device.

    `index` and `driver_index` differ in a container that has only some of the host's devices.
    """

    index: int  # N of /dev/neuronN
    driver_index: int  # number in the name of the device's directory
    path: str
    number: str | None  # the device number, "major:minor"
    _layouts: list[FileLocator]  # the locator, in a list that all devices share; empty until the first use of `layouts`

    @property
    def layouts(self) -> FileLocator:
        """The locator of files that the driver has moved."""
        if not self._layouts:
            from neurontools.driver.sysfs_layout import FileLocator

            self._layouts.append(FileLocator())
        return self._layouts[0]

    def file_path(self, path: str) -> str:
        """Returns the full path of a sysfs file, whose `path` is relative to the device's directory.

        If `path` doesn't exist, searches the device's directory for a file of that name.
        """
        usual = f"{self.path}/{path}"
        if os.path.lexists(usual):
            return usual
        found = self.layouts.search(self.path).device.get(path)
        return usual if found is None else f"{self.path}/{found}"

    def core_numbers(self) -> list[int]:
        return sorted(list_numbered(self.path, _CORE, MAX_CORES))

    def core_path(self, physical_core: int) -> str:
        return f"{self.path}/{_CORE}{physical_core}"


def list_numbered(directory: str, prefix: str, limit: int) -> dict[int, str]:
    """Returns the paths of entries whose name is `prefix` plus a number below `limit`, keyed by that number.

    Returns an empty dictionary if the directory can't be listed.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208 - pathlib is slow
    except (OSError, ValueError):
        return {}
    found: dict[int, str] = {}
    for name in names:
        digits = name[len(prefix) :] if name.startswith(prefix) else ""
        plain = digits.isascii() and digits.isdigit() and len(digits) < 4 and digits == str(int(digits))
        if plain and int(digits) < limit:
            found[int(digits)] = f"{directory}/{name}"
    return found


def _shown_devices(roots: Roots) -> dict[int, str]:
    devices = list_numbered(roots.devices, _DEVICE, MAX_DEVICES)
    return devices or list_numbered(roots.device_class, _DEVICE, MAX_DEVICES)


def list_device_directories(roots: Roots) -> list[DeviceDirectory]:
    """Returns the devices of the host, or of the container this process runs in, sorted by index."""
    found = _shown_devices(roots)
    by_number: dict[str, int] = {}
    numbers: dict[int, str | None] = {}
    for driver_index, path in found.items():
        number = numbers[driver_index] = read_text(f"{path}/{sysfs_files.DEVICE_NUMBER}", 32)
        if number:
            by_number[number] = driver_index
    given = {node: by_number[number] for node, number in _nodes(roots).items() if number in by_number}
    layouts: list[FileLocator] = []
    return [
        DeviceDirectory(node, index, found[index], numbers[index], layouts)
        for node, index in sorted((given or {index: index for index in found}).items())
    ]


class DeviceShare:
    """The devices that this container or host may use.

    `allowed_indices` has the indices of the devices that a container may use; empty if it has all devices.
    `foreign_count` is the number of devices that the driver shows but this container may not use. `fileless` has the
    driver indices of the host's devices that have no file in /dev.
    """

    def __init__(self, roots: Roots, directories: list[DeviceDirectory]) -> None:
        found = _shown_devices(roots)
        self.allowed_indices: set[int] = set()
        self.fileless: set[int] = set()
        self.foreign_count = max(0, len(found) - len(directories))
        if not self.foreign_count:
            return
        if _has_all_files(roots):
            self.foreign_count = 0
            self.fileless = found.keys() - {directory.driver_index for directory in directories}
        else:
            # Includes device files without a sysfs directory: those devices are expected but missing.
            self.allowed_indices = set(_nodes(roots))


def _has_all_files(roots: Roots) -> bool:
    """Whether /dev is a devtmpfs, in which the kernel creates a file for each device of the host.

    In containers, and in services that systemd confines, /dev is a tmpfs with selected files.
    """
    try:
        mountinfo = read_whole_file(f"{roots.proc}/self/mountinfo", _MAX_MOUNTINFO_BYTES)
    except (OSError, ValueError):
        return False
    longest, kind = "", ""
    for line in mountinfo.decode("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        point = fields[4] if len(fields) > 4 else ""
        # A later mount on the same mount point hides the earlier one.
        is_above = f"{roots.dev}/".startswith(f"{point.rstrip('/')}/")
        if point and is_above and len(point) >= len(longest):
            longest, kind = point, after.partition(" ")[0]
    return kind == "devtmpfs"


def _nodes(roots: Roots) -> dict[int, str]:
    """Returns the device number of each device file, keyed by N of /dev/neuronN. Does not open the files."""
    nodes = {}
    for index, path in list_numbered(roots.dev, _DEVICE, MAX_DEVICES).items():
        try:
            status = os.stat(path)  # noqa: PTH116 - pathlib is slow
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            nodes[index] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return nodes


MAX_PCI_DEVICES = 4096
_ADDRESS_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    """PCI address, local CPUs and NUMA node of one device. `inferred` names the fields with an inferred value."""

    bdf: str | None
    cpu_affinity: str | None
    numa_node: str | None
    inferred: tuple[str, ...]


_FIELDS = ("bdf", "cpu_affinity", "numa_node")


def read_placements(
    roots: Roots, family: DeviceFamily, instance_type: InstanceType | None, driver_indices: list[int]
) -> dict[int, DevicePlacement]:
    """Returns the placement of each device, keyed by driver index.

    Reads sysfs at the PCI address that the catalog has for a device. If the catalog has no address, assigns the host's
    PCI devices in order; with several devices, the result is marked as inferred. If the host has no PCI devices, as in
    a copy of the sysfs tree, takes all values from the catalog and marks them as inferred.
    """
    present = _addresses(roots, family)
    placements: dict[int, DevicePlacement] = {}
    for position, index in enumerate(driver_indices):
        facts = instance_type.devices[index] if instance_type and index < instance_type.device_count else None
        bdf = facts.bdf.value if facts else None
        if bdf in present:
            placements[index] = _read(roots, bdf, certain=facts is not None and facts.bdf.certain)
        elif bdf is None and len(present) == len(driver_indices):
            placements[index] = _read(roots, present[position], certain=len(present) == 1)
        elif facts is not None and not present:
            values = (facts.bdf.value, facts.cpu_affinity.value, facts.numa_node.value)
            inferred = tuple(name for name, value in zip(_FIELDS, values, strict=True) if value is not None)
            placements[index] = DevicePlacement(*values, inferred)
        else:
            placements[index] = DevicePlacement(None, None, None, ())
    return placements


def _read(roots: Roots, bdf: str, *, certain: bool) -> DevicePlacement:
    directory = f"{roots.pci_devices}/{bdf}"
    cpu_affinity = _number_or_cpu_list(read_text(f"{directory}/local_cpulist"))
    numa_node = _number_or_cpu_list(read_text(f"{directory}/numa_node", 32))
    return DevicePlacement(bdf, cpu_affinity, numa_node, () if certain else _FIELDS)


def _number_or_cpu_list(text: str | None) -> str | None:
    """Returns the text if it is a number or a CPU list such as 0-3,8, otherwise None."""
    return text if text and all(character in "0123456789-," for character in text) else None


def _addresses(roots: Roots, family: DeviceFamily) -> list[str]:
    """Returns the addresses of all PCI devices of this family, ascending."""
    try:
        names = sorted(os.listdir(roots.pci_devices))[:MAX_PCI_DEVICES]  # noqa: PTH208 - pathlib is slow
    except OSError:
        return []
    vendor = f"0x{family.pci.vendor_id}"
    neuron_ids = {f"0x{device_id}" for device_id in family.pci.device_ids}
    return [
        name
        for name in names
        if len(name) <= _ADDRESS_CHARACTERS
        and name.isascii()
        and name.isprintable()
        and read_text(f"{roots.pci_devices}/{name}/vendor", 16) == vendor
        and read_text(f"{roots.pci_devices}/{name}/device", 16) in neuron_ids
    ]


@dataclass(frozen=True, slots=True)
class HostArchitecture:
    """Device family and instance type of a host."""

    family: DeviceFamily
    name: str  # name of the instance type, or of the family if the size is unknown
    instance_type: InstanceType | None  # None if the catalog has no entry for the instance type
    name_is_inferred: bool = False  # whether the name comes from the devices, not from the firmware


def detect_architecture(roots: Roots, directories: list[DeviceDirectory]) -> HostArchitecture:
    """Returns the family and instance type of this host.

    Raises UserError if the catalog has neither the firmware's product name nor the family of the devices.
    """
    product = read_text(f"{roots.dmi}/product_name", 128) or ""
    named = _catalog_entry(product)
    # Skips the other devices if the firmware and the first device agree, as they nearly always do.
    if named is not None and directories and _score(named.family, _strings(directories[0])) == _FULL_SCORE:
        return HostArchitecture(named.family, product, named)
    strings = [_strings(directory) for directory in directories]
    family = _family(strings, named)
    if family is None:
        if named is None:
            shown = excerpt(", ".join(sorted({text for row in strings for text in row if text})), 80) or "nothing"
            raise UserError(
                f"the devices under {roots.devices} have an architecture that this version does not know ({shown}); "
                "update neurontools, or check that this is the driver's tree and is readable"
            )
        family = named.family
    if named is not None and named.family.name == family.name:
        return HostArchitecture(family, product, named)
    if product.startswith(family.sysfs.instance_type.lower()):  # the catalog lacks this size of the family
        return HostArchitecture(family, excerpt(product, 64), None)
    fitting = _matching_instance_types(family, len(directories))
    # The instance types in `fitting` differ only in their networks, so the first one supplies the facts of the devices.
    name = fitting[0].name if len(fitting) == 1 else family.sysfs.instance_type.lower()
    return HostArchitecture(family, name, fitting[0] if fitting else None, name_is_inferred=True)


_Strings = tuple[str | None, str | None, str | None]


def _strings(directory: DeviceDirectory) -> _Strings:
    return (
        read_text(directory.file_path(sysfs_files.INSTANCE_TYPE), 64),
        read_text(directory.file_path(sysfs_files.DEVICE_NAME), 64),
        read_text(directory.file_path(sysfs_files.ARCH_TYPE), 64),
    )


def _family(strings: list[_Strings], named: InstanceType | None) -> DeviceFamily | None:
    """Returns the family that most devices match. All devices of a host are of one family."""
    votes: dict[str, int] = {}
    first = (named.family.name,) if named else ()  # tried first, because loading another family takes time
    for name in dict.fromkeys((*first, *catalog.family_names())):
        family = catalog.load_family(name)
        if score := sum(_score(family, row) for row in strings):
            votes[name] = score
        if votes.get(name, 0) >= _FULL_SCORE * len(strings) > 0:
            break
    return catalog.load_family(max(votes, key=votes.__getitem__)) if votes else None


_FULL_SCORE = 2


def _score(family: DeviceFamily, strings: _Strings) -> int:
    """Returns how well a device's sysfs strings match a family: 0 to _FULL_SCORE."""
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
    for name in catalog.names():  # the driver treats some product names as aliases
        if name.startswith(family) and product in catalog.load(name).other_names:
            return catalog.load(name)
    return None


def _matching_instance_types(family: DeviceFamily, device_count: int) -> list[InstanceType]:
    prefix = family.sysfs.instance_type.lower()
    types = [catalog.load(name) for name in catalog.names() if name.startswith(prefix)]
    return [kind for kind in types if kind.family.name == family.name and kind.device_count == device_count]
