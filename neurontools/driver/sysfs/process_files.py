"""One process as /proc has it: read by hand, because the tree may be a copy in a directory."""

from __future__ import annotations

import os

from neurontools.driver.sysfs.small_file import read_all, read_bytes

MAX_COMMAND_CHARACTERS = 4096
_MAX_ENVIRONMENT_BYTES = 2**20
_MAX_MAPS_BYTES = 2**23
_LIBRARY = b"libnrt.so."
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_VERSION_CHARACTERS = 64
UNKNOWN_VERSION = "unknown"


class Times:
    """What /proc/PID/stat tells of a process that changes."""

    __slots__ = ("cpu_system_seconds", "cpu_user_seconds", "resident_bytes", "started_at_ticks")

    def __init__(self, user: float, system: float, resident_bytes: int, started_at_ticks: int) -> None:
        self.cpu_user_seconds = user
        self.cpu_system_seconds = system
        self.resident_bytes = resident_bytes
        self.started_at_ticks = started_at_ticks

    @property
    def started_after_boot_seconds(self) -> float:
        """When the process started, seconds after the start of the machine."""
        return self.started_at_ticks / _TICKS_PER_SECOND


class ProcessFiles:
    """Reads the files of one process; what can't be read is None, or "" for texts."""

    __slots__ = ("_directory",)

    def __init__(self, proc: str, pid: int) -> None:
        self._directory = f"{proc}/{pid}"

    def times(self) -> Times | None:
        """Times, memory and start; None when the process ended."""
        try:
            # The name in parentheses may hold anything, parentheses too.
            fields = read_bytes(f"{self._directory}/stat").rpartition(b")")[2].split()
            user, system, started, pages = (int(fields[position]) for position in (11, 12, 19, 21))
        except (OSError, ValueError, IndexError):
            return None
        if min(user, system, started, pages) < 0 or max(user, system, started, pages) >= 2**63:
            return None
        return Times(user / _TICKS_PER_SECOND, system / _TICKS_PER_SECOND, pages * _PAGE_BYTES, started)

    def command(self) -> str:
        """The command line."""
        try:
            raw = read_all(f"{self._directory}/cmdline", 4 * MAX_COMMAND_CHARACTERS)
        except OSError:
            return ""
        return " ".join(raw.decode("utf-8", "replace").split("\0")).strip()[:MAX_COMMAND_CHARACTERS]

    def uid(self) -> int | None:
        """Whose process it is: its real user id, as its status file says."""
        try:
            for line in read_bytes(f"{self._directory}/status").split(b"\n"):
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return None

    def environment(self) -> dict[str, str] | None:
        """The environment it was started with; None when that is not for us to see."""
        try:
            raw = read_all(f"{self._directory}/environ", _MAX_ENVIRONMENT_BYTES)
        except OSError:
            return None
        pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def runtime_version(self) -> str | None:
        """The version of the Neuron runtime it has loaded; None when it has none, "unknown" for an unnumbered one."""
        try:
            maps = read_all(f"{self._directory}/maps", _MAX_MAPS_BYTES)
        except OSError:
            return None
        best = None
        position = maps.find(_LIBRARY)
        while position >= 0:
            end = maps.find(b"\n", position)
            name = maps[position + len(_LIBRARY) : end if end >= 0 else len(maps)]
            text = name.removesuffix(b" (deleted)").decode("ascii", "replace")
            if text and len(text) <= _MAX_VERSION_CHARACTERS and text.replace(".", "").isalnum() and text.isascii():
                return text
            best = UNKNOWN_VERSION
            position = maps.find(_LIBRARY, position + 1)
        return best


def boot_unix_seconds(proc: str) -> float | None:
    """When the machine started, Unix time; None when it can't be read."""
    try:
        for line in read_all(f"{proc}/stat", 2**20).split(b"\n"):
            if line.startswith(b"btime "):
                return float(int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    return None
