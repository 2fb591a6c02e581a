"""Which processes work together, by their launcher or process group, and their ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from neurond.system.launchers import VARIABLES, launch_of, run_id
from neurond.system.process_environment import content, environment
from neurontools.model import Job

_MAX_STAT_BYTES = 4096
_LOOKS = 3  # a process that was just started may still move into a group of its own
_BOOT_ID = "sys/kernel/random/boot_id"
_OF_THE_HOST = b"0 0 4294967295"  # what a process sees in uid_map whose users are those of the host


class Jobs:
    """Remembers each process's job. Belongs to the event loop's thread. `proc` is where the /proc file system is."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._known: dict[int, tuple[float | None, int, Job | None]] = {}

    def keep(self, pids: Iterable[int]) -> None:
        """Forgets all processes but these."""
        for gone in self._known.keys() - set(pids):
            del self._known[gone]

    def of(self, pid: int, seen_at_unix_seconds: float | None) -> Job | None:
        """The job of the process that has had this PID since then; None where nothing tells."""
        known = self._known.get(pid)
        if known is None or known[0] != seen_at_unix_seconds:
            known = seen_at_unix_seconds, 0, None
        seen_at, looks, job = known
        if looks < _LOOKS:
            job = self._read(pid)
            self._known[pid] = seen_at, looks + 1, job
        return job

    def _read(self, pid: int) -> Job | None:
        directory = self._proc / str(pid)
        name = group_of(pid, content(directory / "stat", _MAX_STAT_BYTES))
        if not name:
            return None
        launch = launch_of(environment(directory, VARIABLES), self._machine())
        run = None
        if launch.run is not None:
            run = run_id(*launch.run, self._owner(directory))
        return Job(
            launch.name or name,
            launch.rank,
            launch.world_size,
            run_id=run,
            first_rank_here=launch.first_rank,
            ranks_here=launch.local_world_size,
        )

    def _machine(self) -> str:
        return content(self._proc / _BOOT_ID, 64).decode("ascii", "replace").strip()

    def _owner(self, directory: Path) -> str:
        """Whose process it is: nobody else's says that it is of the same run. "" where its users are not the host's."""
        if content(directory / "uid_map", 256).split() == _OF_THE_HOST.split():
            with contextlib.suppress(OSError):
                return f"user {directory.stat().st_uid}"
        return ""


def group_of(pid: int, stat: bytes) -> str:
    """The name of a process's job by the text of /proc/PID/stat; "" where that tells none.

    A launcher like torchrun gives each worker a session of its own; otherwise the workers are in one process group.
    """
    parts = stat.rpartition(b")")[2].split()
    try:
        parent, group, session = (int(part) for part in parts[1:4])
    except ValueError:
        return ""
    if session == pid and parent > 1:
        return f"job of PID {parent}"
    return f"process group {group}" if group > 0 else ""
