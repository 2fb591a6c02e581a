"""One thing that was looked at, and what an examination looks with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from neurontools.driver.environment import Roots


class Level(StrEnum):
    """What it means."""

    OK = "ok"
    NOTE = "note"  # worth knowing; may be meant so
    PROBLEM = "problem"  # something will not work


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one thing. `action` is what to do; "" where there is nothing to be done."""

    area: str  # installed, driver, daemon, host, variables
    level: Level
    found: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where is looked: the environment of this process, and the trees of the operating system."""

    environment: Mapping[str, str]
    roots: Roots
    socket: str | None = None  # the one that was named; None: wherever daemons listen

    @classmethod
    def here(cls, socket: str | None) -> Place:
        """This process's own."""
        return cls(os.environ, Roots.from_environment(os.environ), socket)


def size_bytes(path: str, most_entries: int = 20_000) -> int:
    """What the files below a directory hold, as far as they can be looked at; links are not followed."""
    total = entries = 0
    for directory, _, names in os.walk(path):
        for name in names:
            entries += 1
            if entries > most_entries:
                return total
            try:
                total += os.lstat(f"{directory}/{name}").st_size
            except OSError:
                continue
    return total
