"""Finds sysfs files that the driver has moved."""

from __future__ import annotations

import os
from dataclasses import dataclass

from neurontools.driver.sysfs_files import CORE_FILES, DEVICE_FILES, POWER_UTILIZATION, SysfsFile, path_in_version

MAX_ENTRIES = 30_000  # limit of the search through all devices; a host with 128 cores has 19,000 entries
_CORE = "neuron_core"
_VALUES = ("total", "present", "peak")

_Tail = tuple[str, ...]
_CorePlace = tuple[str, str]
"""Path parts before and after the number of the core."""


class FileIndex:
    """Finds known driver files by name in the directory of a device.

    `device` and `core` map the usual path of a file to the path where it was found. Both are relative to the device's
    directory. `ambiguous` has the usual paths of files found more than once.
    """

    def __init__(self, paths: list[str]) -> None:
        device: dict[str, set[str]] = {}
        core: dict[str, set[_CorePlace]] = {}
        for path in paths:
            *above, name = path.split("/")
            if any(part.isdigit() for part in above):  # skips numbered directories, such as one per process
                continue
            cores = [part for part in above if _is_core(part)]
            if not cores:
                for usual_path in _usual_paths(_DEVICE_NAMES, above, name):
                    device.setdefault(usual_path, set()).add(path)
            elif len(cores) == 1:
                for usual_path in _usual_paths(_CORE_NAMES, above, name):
                    before, _, behind = f"/{path}".partition(f"/{cores[0]}/")
                    core.setdefault(usual_path, set()).add((f"{before}/{_CORE}"[1:], f"/{behind}"))
        self.device = {usual_path: min(places) for usual_path, places in device.items() if len(places) == 1}
        self.core = {usual_path: min(places) for usual_path, places in core.items() if len(places) == 1}
        self.ambiguous = frozenset(
            usual_path for found in (device, core) for usual_path, places in found.items() if len(places) > 1
        )


@dataclass(slots=True)
class FileLocations:
    """The paths of the expected files of one device, relative to the device's directory."""

    device: dict[str, str]
    core: dict[str, _CorePlace]
    moved: dict[str, str]  # maps usual paths to paths found by name
    missing: tuple[str, ...] = ()  # files that were not found
    ambiguous: tuple[str, ...] = ()  # files that were found more than once
    is_cut: bool = False  # whether the search was incomplete

    @property
    def has_no_match(self) -> bool:
        """Whether none of the expected files was found."""
        return not self.is_complete and not (self.device or self.core)

    @property
    def is_complete(self) -> bool:
        """Whether all expected files were found, moved or not."""
        return not (self.missing or self.ambiguous)


class FileLocator:
    """Finds the paths of moved files. First tries the paths found for other devices. Not thread-safe."""

    def __init__(self) -> None:
        self._walk = BoundedWalk(MAX_ENTRIES)
        self._searched: list[FileIndex] = []
        self._by_directory: dict[str, FileIndex] = {}

    def locate(
        self, directory: str, cores: list[int], device_files: list[str], core_files: list[str], version: tuple[int, ...]
    ) -> FileLocations:
        device = {path: path_in_version(path, version) for path in device_files}
        core = {path: (_CORE, f"/{path_in_version(path, version)}") for path in core_files}
        locations = FileLocations(device, core, {})
        lost = [path for path, place in locations.device.items() if not _is_there(directory, place)]
        lost_of_cores = [
            path for path, place in locations.core.items() if not _is_core_file_there(directory, place, cores)
        ]
        if not lost and not lost_of_cores:
            return locations
        found = self._reused_index(directory, cores, lost, lost_of_cores) or self.search(directory)
        missing: list[str] = []
        for path in lost:
            place = found.device.get(path)
            if place is None:
                missing.append(path)
                del locations.device[path]
            else:
                locations.device[path] = locations.moved[path] = place
        for path in lost_of_cores:
            place_of_core = found.core.get(path)
            if place_of_core is None:
                missing.append(path)
                del locations.core[path]
            elif place_of_core != locations.core[path]:  # if equal, the file did not move: only the first core lacks it
                locations.core[path] = place_of_core
                locations.moved[path] = f"{place_of_core[0]}*{place_of_core[1]}"
        locations.ambiguous = tuple(path for path in missing if path in found.ambiguous)
        locations.missing = tuple(path for path in missing if path not in found.ambiguous)
        locations.is_cut = self._walk.is_cut and bool(missing)
        return locations

    def search(self, directory: str) -> FileIndex:
        """Returns the known files below the directory of a device. Searches each directory once."""
        files = self._by_directory.get(directory)
        if files is None:
            files = self._by_directory[directory] = FileIndex(self._walk.files(directory))
            self._searched.append(files)
        return files

    def _reused_index(
        self, directory: str, cores: list[int], lost: list[str], lost_of_cores: list[str]
    ) -> FileIndex | None:
        """Returns the index of another device whose paths lead to all files that this device lacks; else None."""
        for files in self._searched:
            if all(path in files.device and _is_there(directory, files.device[path]) for path in lost) and all(
                path in files.core and _is_core_file_there(directory, files.core[path], cores) for path in lost_of_cores
            ):
                return files
        return None


def _is_there(directory: str, place: str) -> bool:
    return os.path.lexists(f"{directory}/{place}")


def _is_core_file_there(directory: str, place: _CorePlace, cores: list[int]) -> bool:
    """Whether the first core has a file. Missing files of other cores are noticed when they are read."""
    return not cores or _is_there(directory, f"{place[0]}{cores[0]}{place[1]}")


def _is_core(part: str) -> bool:
    digits = part[len(_CORE) :]
    return part.startswith(_CORE) and digits.isascii() and digits.isdigit() and len(digits) < 3


def _name_of(path: str) -> tuple[str, _Tail]:
    """Returns path parts that identify a moved file: a directory above it (or ""), and the last one or two parts."""
    parts = path.split("/")
    if path == POWER_UTILIZATION:
        return "power", (parts[-1],)
    if parts[-1] not in _VALUES:
        return "", (parts[-1],)
    tail = tuple(parts[-2:])
    scope = next((part for part in ("device_mem", "host_mem") if part in parts[:-2]), "")
    return scope, tail


def _paths_by_tail(table: tuple[SysfsFile, ...]) -> dict[_Tail, list[tuple[str, str]]]:
    names: dict[_Tail, list[tuple[str, str]]] = {}
    for file in table:
        scope, tail = _name_of(file.path)
        names.setdefault(tail, []).append((scope, file.path))
    return names


_DEVICE_NAMES, _CORE_NAMES = _paths_by_tail(DEVICE_FILES), _paths_by_tail(CORE_FILES)


def _usual_paths(names: dict[_Tail, list[tuple[str, str]]], above: list[str], name: str) -> list[str]:
    """Returns the usual paths of the known files that have this name and are below these directories."""
    tails: tuple[_Tail, ...] = ((name,),) if name not in _VALUES else ((above[-1], name),) if above else ()
    return [path for tail in tails for scope, path in names.get(tail, ()) if not scope or scope in above]


MAX_DEPTH = 12
MAX_ENTRIES_PER_DIRECTORY = 4096
MAX_ENTRIES_PER_WALK = 8192


class BoundedWalk:
    """Directory walks that share a limit on the number of entries. `is_cut` is true once a walk skips entries."""

    def __init__(self, entries: int) -> None:
        self.entries_left = entries
        self._left_of_this = 0
        self.is_cut = False

    def files(self, directory: str) -> list[str]:
        """Returns the paths of the files below a directory, relative to it, breadth first."""
        self._left_of_this = min(MAX_ENTRIES_PER_WALK, self.entries_left)
        found: list[str] = []
        level = [""]
        for _ in range(MAX_DEPTH):
            below: list[str] = []
            for prefix in level:
                self._list_directory(directory, prefix, found, below)
            if not below:
                return found
            level = below
        self.is_cut = True
        return found

    def _list_directory(self, directory: str, prefix: str, files: list[str], directories: list[str]) -> None:
        most = min(MAX_ENTRIES_PER_DIRECTORY, self._left_of_this)
        try:
            with os.scandir(f"{directory}/{prefix}") as entries:
                for number, entry in enumerate(entries):
                    if number >= most:
                        self.is_cut = True
                        break
                    self.entries_left -= 1
                    self._left_of_this -= 1
                    if entry.is_file(follow_symlinks=False):
                        files.append(prefix + entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        directories.append(f"{prefix}{entry.name}/")
        except (OSError, ValueError):
            return
