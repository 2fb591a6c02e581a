"""Which processes work together, by their launcher or process group, and their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from neurond.system.process_environment import content, environment
from neurontools.model import Job

_MAX_STAT_BYTES = 4096
_LOOKS = 3  # a process that was just started may still move into a group of its own
_MOST_RANKS = 2**20
_RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK")
_WORLD_SIZES = (b"WORLD_SIZE", b"SLURM_NTASKS", b"OMPI_COMM_WORLD_SIZE")
_VARIABLES = frozenset((*_RANKS, *_WORLD_SIZES))


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
        told = environment(directory, _VARIABLES)
        return Job(name, _first_number(told, _RANKS), _first_number(told, _WORLD_SIZES))


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


def _first_number(environment: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> int | None:
    for name in names:
        text = environment.get(name, b"")
        if text.isdigit() and len(text) <= 7 and int(text) < _MOST_RANKS:
            return int(text)
    return None
