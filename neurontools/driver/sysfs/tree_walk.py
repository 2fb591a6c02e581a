"""The files below a directory of a tree that may be anything: bounded, and never through a link."""

from __future__ import annotations

import os

MAX_DEPTH = 12
MAX_ENTRIES_PER_DIRECTORY = 4096
MAX_ENTRIES_PER_WALK = 8192


class Walk:
    """Walks that share a budget of entries; `is_cut` once one of them left something out."""

    __slots__ = ("_left_of_this", "entries_left", "is_cut")

    def __init__(self, entries: int) -> None:
        self.entries_left = entries
        self._left_of_this = 0
        self.is_cut = False

    def files(self, directory: str) -> list[str]:
        """The paths of the files below a directory, relative to it, those nearest to it first."""
        self._left_of_this = min(MAX_ENTRIES_PER_WALK, self.entries_left)
        found: list[str] = []
        level = [""]
        for _ in range(MAX_DEPTH):
            below: list[str] = []
            for prefix in level:
                self._look(directory, prefix, found, below)
            if not below:
                return found
            level = below
        self.is_cut = True
        return found

    def _look(self, directory: str, prefix: str, files: list[str], directories: list[str]) -> None:
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
