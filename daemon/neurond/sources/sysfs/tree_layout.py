"""Where the driver's files are, told once for each device, and what to say of a layout that nobody has described."""

from __future__ import annotations

import logging

from neurond.sources.sysfs.device_reader import files_to_read
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.sysfs_layout import FileLocations, FileLocator
from neurontools.util.terminal import excerpt

_NEWEST = (10**6,)  # an unknown driver may have every file
_MAX_SHOWN_CHARACTERS = 120
# What was not found may come later: it is looked for again after so many rounds, each time twice as many.
_FIRST_ROUNDS, _LONGEST_ROUNDS = 16, 1024

_log = logging.getLogger(__name__)


class TreeLayout:
    """The places of the files of devices of one driver. Not safe for threads.

    `version` is None where the driver doesn't tell it: then any file may be missing.
    """

    def __init__(self, version: tuple[int, ...] | None, generation: int) -> None:
        self._version = version
        self._device_files, self._core_files = files_to_read(version or _NEWEST, generation)
        self._layouts = FileLocator()
        self._rounds = _FIRST_ROUNDS
        self._rounds_left = _FIRST_ROUNDS
        self._warned_of: tuple[tuple[str, FileLocations], ...] = ()
        self._warnings: list[str] | None = None

    def places(self, directory: DeviceDirectory, cores: list[int]) -> FileLocations:
        """Where the files of a device are."""
        version = self._version or _NEWEST
        return self._layouts.places(directory.path, cores, self._device_files, self._core_files, version)

    def is_due(self, *, is_something_missing: bool) -> bool:
        """Whether to look for the places anew, called once a round."""
        if not is_something_missing:
            self._rounds = self._rounds_left = _FIRST_ROUNDS
            return False
        self._rounds_left -= 1
        if self._rounds_left > 0:
            return False
        self._rounds = self._rounds_left = min(2 * self._rounds, _LONGEST_ROUNDS)
        self._layouts = FileLocator()
        return True

    def warnings(self, found: tuple[tuple[str, FileLocations], ...]) -> list[str]:
        """What to tell of the places of these devices, by name. The log is told when it is the known one."""
        if self._warnings is None or found != self._warned_of:
            self._warned_of = found
            before, self._warnings = self._warnings, self._made(found)
            if self._warnings != before and not self._warnings:  # warnings of a snapshot are logged where it is made
                _log.info("the tree of %s has the layout that is known", self._driver)
        return self._warnings

    @property
    def _driver(self) -> str:
        return "driver " + ".".join(map(str, self._version)) if self._version else "this driver"

    def _made(self, found: tuple[tuple[str, FileLocations], ...]) -> list[str]:
        driver = self._driver
        moved: dict[str, str] = {}
        missing: dict[str, list[str]] = {}
        ambiguous: dict[str, list[str]] = {}
        senseless: list[str] = []
        is_cut = False
        for name, places in found:
            moved.update({f"{name}/{path}": f"{name}/{place}" for path, place in places.moved.items()})
            if places.is_senseless:
                senseless.append(name)
            else:
                if self._version is not None:
                    missing.update({f"{name}/{path}": [] for path in places.missing})
                ambiguous.update({f"{name}/{path}": [] for path in places.ambiguous})
            is_cut = is_cut or places.is_cut
        told = []
        if senseless:
            count = len(self._device_files) + len(self._core_files)
            told.append(
                f"the tree of {driver} has a layout that this version can't make sense of: below {_some(senseless)} is "
                f"none of {count} files that it knows; memory, counters and health are unknown; update neurontools"
            )
        if moved:
            path, place = next(iter(moved.items()))
            told.append(
                f"the tree of {driver} has a layout that this version doesn't know: {len(moved)} files are in other "
                f"places and were told by their names ({path} is {excerpt(place, _MAX_SHOWN_CHARACTERS)}); "
                "update neurontools"
            )
        if missing:
            told.append(f"{_some(list(missing))} not in the tree of {driver}: what would be in there is unknown")
        if ambiguous:
            told.append(f"{_some(list(ambiguous))} in several places in the tree of {driver}: taken from none")
        if is_cut:
            told.append("the tree below the devices is too large: not all of it was looked through for missing files")
        return told


def _some(names: list[str]) -> str:
    """The first name and how many more there are, with the verb that follows."""
    if len(names) == 1:
        return f"{names[0]} is" if "/" in names[0] else names[0]
    more = f"{names[0]} and {len(names) - 1} more"
    return f"{more} are" if "/" in names[0] else more
