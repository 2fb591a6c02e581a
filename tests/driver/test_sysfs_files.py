"""The driver's files by driver version and hardware generation, as DriverTree and neurond --export-sysfs write them."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from pathlib import Path

from neurontools.driver import sysfs_files
from neurontools.driver.sysfs_files import SysfsFile, files_for_driver
from tests.harness.pictures import is_as_stored

GOLDEN = Path(__file__).parent / "golden/sysfs_files.txt"
MINORS = range(32)


def rows(name: str, table: tuple[SysfsFile, ...]) -> list[str]:
    """A row for the files that are alike, with the versions in which they appear, change their mode or go."""
    modes: dict[str, dict[int, str]] = defaultdict(lambda: dict.fromkeys(MINORS, "gone"))
    generations: dict[str, set[int]] = defaultdict(set)
    for generation in (1, 2, 3, 4):
        for minor in MINORS:
            for file in files_for_driver(table, (2, minor), generation):
                modes[file.path][minor] = f"{file.mode:o}"
                generations[file.path].add(generation)
    files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, by_minor in modes.items():
        changes = [(mode, next(found)) for mode, found in groupby(MINORS, by_minor.__getitem__)]
        text = ", ".join(f"{mode} from 2.{minor}" for mode, minor in changes if (mode, minor) != ("gone", 0))
        directory, _, file_name = f"{name}/{path}".rpartition("/")
        files[directory, f"{text}; generations {min(generations[path])}-4"].append(file_name)
    directories: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (directory, text), names in files.items():
        above, _, last = directory.rpartition("/")
        directories[above, f"/({' '.join(names)}): {text}"].append(last)
    return [f"{above}/({' '.join(names)}){text}" for (above, text), names in directories.items()]


def test_files_by_driver_version_are_as_stored() -> None:
    found = rows("/neuron0", sysfs_files.DEVICE_FILES) + rows("/neuron0/neuron_core0", sysfs_files.CORE_FILES)
    assert is_as_stored("\n".join(found) + "\n", GOLDEN), "sysfs_files.txt differs; UPDATE_GOLDEN=1 writes it anew"
