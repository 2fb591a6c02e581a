"""Which devices the driver shows, and where: a directory for each, also inside a container that renumbers them."""

from __future__ import annotations

import os
import stat

from neurontools.driver.sysfs.file_table import DEVICE_NUMBER
from neurontools.driver.sysfs.roots import Roots
from neurontools.driver.sysfs.small_file import read_all, read_text

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from neurontools.driver.sysfs.layout import Layouts

MAX_DEVICES = 64  # as many as the driver supports
MAX_CORES = 64
_DEVICE, _CORE = "neuron", "neuron_core"
_MAX_MOUNTINFO_BYTES = 4 * 2**20  # a node of a cluster has a line for each mount of each container


class DeviceDirectory:
    """One device in the tree.

    `index` is the number users know: N of /dev/neuronN. `driver_index` is the driver's own, in the name of the
    directory; the two differ in a container that was given only some of the devices. `number` is the device number.
    """

    __slots__ = ("_layouts", "driver_index", "index", "number", "path")

    def __init__(
        self, index: int, driver_index: int, path: str, number: str | None, layouts: list[Layouts] | None = None
    ) -> None:
        self.index = index
        self.driver_index = driver_index
        self.path = path
        self.number = number
        self._layouts: list[Layouts] = [] if layouts is None else layouts

    @property
    def layouts(self) -> Layouts:
        """Finds files in places that this version doesn't know; made when it is needed, for all devices together."""
        if not self._layouts:
            from neurontools.driver.sysfs.layout import Layouts

            self._layouts.append(Layouts())
        return self._layouts[0]

    def place(self, path: str) -> str:
        """Where a file of the device is that stands at `path` today, or stood there until the driver moved it."""
        usual = f"{self.path}/{path}"
        if os.path.lexists(usual):
            return usual
        found = self.layouts.found(self.path).device.get(path)
        return usual if found is None else f"{self.path}/{found}"

    def core_numbers(self) -> list[int]:
        """The physical cores that have a directory, ascending."""
        return sorted(numbered(self.path, _CORE, MAX_CORES))

    def core_path(self, physical_core: int) -> str:
        """The directory of a physical core."""
        return f"{self.path}/{_CORE}{physical_core}"


def numbered(directory: str, prefix: str, limit: int) -> dict[int, str]:
    """The entries called prefix and a number below the limit; none where the directory can't be listed."""
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


def device_directories(roots: Roots) -> list[DeviceDirectory]:
    """The devices of the host, or those of the container we are in, by index."""
    found = numbered(roots.devices, _DEVICE, MAX_DEVICES) or numbered(roots.device_class, _DEVICE, MAX_DEVICES)
    by_number: dict[str, int] = {}
    numbers: dict[int, str | None] = {}
    for driver_index, path in found.items():
        number = numbers[driver_index] = read_text(f"{path}/{DEVICE_NUMBER}", 32)
        if number:
            by_number[number] = driver_index
    given = {node: by_number[number] for node, number in _nodes(roots).items() if number in by_number}
    layouts: list[Layouts] = []
    return [
        DeviceDirectory(node, index, found[index], numbers[index], layouts)
        for node, index in sorted((given or {index: index for index in found}).items())
    ]


class Share:
    """Which of the devices that the driver shows are for whoever reads here.

    `given` are the devices of a container that was given some, by index; none where all are everybody's.
    `foreign_count`: how many others the driver shows. `fileless` are devices of a host whose device file is gone.
    """

    __slots__ = ("fileless", "foreign_count", "given")

    def __init__(self, roots: Roots, directories: list[DeviceDirectory]) -> None:
        found = numbered(roots.devices, _DEVICE, MAX_DEVICES) or numbered(roots.device_class, _DEVICE, MAX_DEVICES)
        self.given: set[int] = set()
        self.fileless: set[int] = set()
        self.foreign_count = len(found) - len(directories)
        if self.foreign_count <= 0:
            self.foreign_count = 0
        elif _has_all_files(roots):
            self.foreign_count = 0
            self.fileless = found.keys() - {directory.driver_index for directory in directories}
        else:
            # A device file without a device in the tree counts as given: the device should be there.
            self.given = set(_nodes(roots))


def _has_all_files(roots: Roots) -> bool:
    """Whether /dev is the kernel's own, a devtmpfs: it makes a file there for each device of the host.

    Containers, and services that systemd confines, have a tmpfs there with the files that somebody put into it.
    """
    try:
        lines = read_all(f"{roots.proc}/self/mountinfo", _MAX_MOUNTINFO_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return False
    longest, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        point = fields[4] if len(fields) > 4 else ""
        # What was mounted later on the same place hides what is below.
        is_above = f"{roots.dev}/".startswith(f"{point.rstrip('/')}/")
        if point and is_above and len(point) >= len(longest):
            longest, kind = point, after.partition(" ")[0]
    return kind == "devtmpfs"


def _nodes(roots: Roots) -> dict[int, str]:
    """Device numbers of the device files by the number in their name. Looked at, never opened."""
    nodes = {}
    for index, path in numbered(roots.dev, _DEVICE, MAX_DEVICES).items():
        try:
            status = os.stat(path)  # noqa: PTH116 - pathlib is slow
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            nodes[index] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return nodes
