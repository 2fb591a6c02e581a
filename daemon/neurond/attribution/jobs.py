"""Which processes work together: by Slurm job, pod, launcher or process group; and their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from neurontools.model import Job, Process, Snapshot

MAX_ENVIRONMENT_BYTES = 512 * 2**10
_MAX_STAT_BYTES = 4096
_LOOKS = 3  # a process that was just started may still move into a group of its own
_MOST_RANKS = 2**20
_RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK")
_WORLD_SIZES = (b"WORLD_SIZE", b"SLURM_NTASKS", b"OMPI_COMM_WORLD_SIZE")
_VARIABLES = frozenset((*_RANKS, *_WORLD_SIZES))

_Key = tuple[int, float | None, float | None]
_NOTHING = Job("")


class Jobs:
    """Remembers each process's job. Belongs to the event loop's thread. `proc` is where the /proc file system is."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._known: dict[_Key, tuple[int, Job]] = {}

    def assign(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the jobs of those of its processes that hold cores."""
        keys = {_key(process) for process in snapshot.processes}
        for gone in self._known.keys() - keys:
            del self._known[gone]
        processes = tuple([self._assigned(process, snapshot.synthetic_load) for process in snapshot.processes])
        return replace(snapshot, processes=processes)

    def _assigned(self, process: Process, load: str | None) -> Process:
        if not process.core_indices:
            return process
        key = _key(process)
        looks, job = self._known.get(key, (0, _NOTHING))
        if looks < _LOOKS:
            job = Job(f"synthetic load {load}", _synthetic_rank(process)) if process.synthetic else self._read(process)
            self._known[key] = looks + 1, job
        named = _told(process)
        if named is not None and named != job.name:
            job = replace(job, name=named)
            self._known[key] = looks + 1, job
        return replace(process, job=job) if job.name else process

    def _read(self, process: Process) -> Job:
        directory = self._proc / str(process.pid)
        entries = _content(directory / "environ", MAX_ENVIRONMENT_BYTES).split(b"\0")
        environment = {
            name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name in _VARIABLES
        }
        return Job(
            group_of(process.pid, _content(directory / "stat", _MAX_STAT_BYTES)),
            _first_number(environment, _RANKS),
            _first_number(environment, _WORLD_SIZES),
        )


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


def _told(process: Process) -> str | None:
    """Slurm's or Kubernetes' own name of the job."""
    of = process.attribution
    if of is None:
        return None
    if of.slurm_job_id:
        return f"Slurm job {of.slurm_job_id}"
    if of.pod_name:
        return f"pod {of.pod_namespace}/{of.pod_name}" if of.pod_namespace else f"pod {of.pod_name}"
    return f"pod {of.pod_uid}" if of.pod_uid else None


def _synthetic_rank(process: Process) -> int | None:
    digits = process.tag.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _first_number(environment: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> int | None:
    for name in names:
        text = environment.get(name, b"")
        if text.isdigit() and len(text) <= 7 and int(text) < _MOST_RANKS:
            return int(text)
    return None


def _key(process: Process) -> _Key:
    """One process, and not the next one with its PID."""
    return process.pid, process.started_at_unix_seconds, process.attached_at_unix_seconds


def _content(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""
