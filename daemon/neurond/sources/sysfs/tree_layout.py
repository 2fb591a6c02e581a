"""Locates the counter files in the trees of all drivers, and warns about layouts that differ from the known one."""

from __future__ import annotations

import logging

from neurond.sources.sysfs.device_reader import files_to_read
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.sysfs_layout import FileLocations, FileLocator
from neurontools.util.terminal import excerpt

_NEWEST = (10**6,)  # highest version; stands for an unknown driver, where any known file may exist
_MAX_PATH_CHARACTERS = 120
# First and highest number of refreshes between two searches for missing files. The number doubles after each search.
_FIRST_ROUNDS, _LONGEST_ROUNDS = 16, 1024

_log = logging.getLogger(__name__)


class TreeLayout:
    """Locates the counter files of all devices of a driver. Not thread-safe.

    `version` is None for an unknown driver, where any file may be missing.
    """

    def __init__(self, version: tuple[int, ...] | None, generation: int) -> None:
        self._version = version
        self._device_files, self._core_files = files_to_read(version or _NEWEST, generation)
        self._layouts = FileLocator()
        self._rounds = _FIRST_ROUNDS
        self._rounds_left = _FIRST_ROUNDS
        self._warned_locations: tuple[tuple[str, FileLocations], ...] = ()
        self._warnings: list[str] | None = None

    def places(self, directory: DeviceDirectory, cores: list[int]) -> FileLocations:
        version = self._version or _NEWEST
        return self._layouts.locate(directory.path, cores, self._device_files, self._core_files, version)

    def is_due(self, *, is_something_missing: bool) -> bool:
        """Returns whether to search for missing files again. Call it once per refresh."""
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
        """Returns warnings about an unknown layout of the tree. `found` has device names and locations of files.

        Logs the change from an unknown to the known layout.
        """
        if self._warnings is None or found != self._warned_locations:
            self._warned_locations = found
            before, self._warnings = self._warnings, self._build_warnings(found)
            if self._warnings != before and not self._warnings:  # the warnings are logged with the snapshot
                _log.info("the tree of %s has the known layout", self._driver)
        return self._warnings

    @property
    def _driver(self) -> str:
        return "driver " + ".".join(map(str, self._version)) if self._version else "this driver"

    def _build_warnings(self, found: tuple[tuple[str, FileLocations], ...]) -> list[str]:
        driver = self._driver
        moved: dict[str, str] = {}
        missing: list[str] = []
        ambiguous: list[str] = []
        unrecognized: list[str] = []
        is_cut = False
        for name, places in found:
            moved.update({f"{name}/{path}": f"{name}/{place}" for path, place in places.moved.items()})
            if places.has_no_match:
                unrecognized.append(name)
            else:
                if self._version is not None:
                    missing += [f"{name}/{path}" for path in places.missing]
                ambiguous += [f"{name}/{path}" for path in places.ambiguous]
            is_cut = is_cut or places.is_cut
        texts = []
        if unrecognized:
            count = len(self._device_files) + len(self._core_files)
            texts.append(
                f"the tree of {driver} has an unknown layout: none of the {count} known files is below "
                f"{_count_text(unrecognized)}; memory, counters and health are unknown; update neurontools"
            )
        if moved:
            path, place = next(iter(moved.items()))
            texts.append(
                f"the tree of {driver} has another layout than this version knows: {len(moved)} files are in other "
                f"places and were found by their names ({path} is {excerpt(place, _MAX_PATH_CHARACTERS)}); "
                "update neurontools"
            )
        if missing:
            texts.append(f"{_count_text(missing)} not in the tree of {driver}: their values are unknown")
        if ambiguous:
            texts.append(
                f"{_count_text(ambiguous)} in several places in the tree of {driver}: their values are unknown"
            )
        if is_cut:
            texts.append("the tree below the devices is too large: not all of it was searched for missing files")
        return texts


def _count_text(names: list[str]) -> str:
    """Formats names, such as "NAME and 2 more". Adds "is" or "are" if the names are paths."""
    if len(names) == 1:
        return f"{names[0]} is" if "/" in names[0] else names[0]
    more = f"{names[0]} and {len(names) - 1} more"
    return f"{more} are" if "/" in names[0] else more
