"""Reads facts of processes: command, user, CPU time, memory, exit status, and job and rank from the launcher."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import psutil

from neurond.system.clocks import SteadyClock
from neurontools.driver.processes import ProcessFiles, read_boot_time
from neurontools.model import Job, Process
from neurontools.util.process_text import script_name

MAX_COMMAND_CHARACTERS = 4096
_SAME_START_SECONDS = 2.0  # start times that differ by less count as equal: the clock may be adjusted
_UNREADABLE = (psutil.Error, OSError)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about one process. None is an unknown fact, "" an unreadable command line."""

    command: str = ""
    started_at_unix_seconds: float | None = None
    resident_bytes: int | None = None
    cpu_user_seconds_total: float | None = None
    cpu_system_seconds_total: float | None = None
    job: Job | None = None


class ProcessTable:
    """Caches facts of processes by PID. Reads constant facts once, and changing facts at each `refresh`.

    Recognizes a reused PID by its start time.
    """

    def __init__(self, clock: SteadyClock | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._processes: dict[int, psutil.Process | None] = {}
        self._facts: dict[int, ProcessFacts] = {}
        self._checked_at_unix_seconds: dict[int, float] = {}

    def refresh(self, pids: Iterable[int]) -> None:
        """Reads the changing facts of these processes, and forgets all other processes."""
        wanted = set(pids)
        for pid in self._facts.keys() - wanted:
            del self._facts[pid], self._processes[pid], self._checked_at_unix_seconds[pid]
        for pid in wanted:
            self._check(pid)

    def facts(self, pid: int, seen_at_unix_seconds: float = 0.0) -> ProcessFacts:
        """Returns the facts of a process that was seen at this time. Reads the facts anew if cached facts are older."""
        if pid not in self._facts or seen_at_unix_seconds > self._checked_at_unix_seconds[pid]:
            self._check(pid)
        return self._facts[pid]

    def last_facts(self, pid: int) -> ProcessFacts:
        return self._facts.get(pid) or ProcessFacts()

    def _check(self, pid: int) -> None:
        self._checked_at_unix_seconds[pid] = self._clock.now()
        facts, process = self._facts.get(pid), self._processes.get(pid)
        if facts is None or process is None:  # a new process, or one that was unreadable the last time
            self._facts[pid] = self._identified(pid)
            return
        with contextlib.suppress(*_UNREADABLE):  # no free file descriptor: keep the cached facts
            if process.is_running():
                self._facts[pid] = self._measured(process, facts)
            elif psutil.pid_exists(pid):  # another process has got the same PID
                self._facts[pid] = self._identified(pid)

    def _identified(self, pid: int) -> ProcessFacts:
        try:
            process = self._processes[pid] = psutil.Process(pid)
        except _UNREADABLE:
            self._processes[pid] = None
            return ProcessFacts()
        command = started = None
        with contextlib.suppress(*_UNREADABLE), process.oneshot():
            started = process.create_time() - self._clock.moved_seconds()
            command = _utf8_text(" ".join(process.cmdline()))[:MAX_COMMAND_CHARACTERS]
        return self._measured(process, ProcessFacts(command or "", started))

    def _measured(self, process: psutil.Process, facts: ProcessFacts) -> ProcessFacts:
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except _UNREADABLE:
            return facts
        return ProcessFacts(facts.command, facts.started_at_unix_seconds, memory.rss, times.user, times.system)


def is_alive(proc: str, process: Process) -> bool:
    """Returns whether a process still runs, by PID and start time. `proc` is the mount point of procfs."""
    times = ProcessFiles(proc, process.pid).times()
    if times is None or process.started_at_unix_seconds is None:
        return times is not None
    boot = read_boot_time(proc)
    started = process.started_at_unix_seconds
    return boot is None or abs(boot + times.started_after_boot_seconds - started) < _SAME_START_SECONDS


def _utf8_text(raw: str) -> str:
    """Replaces invalid UTF-8 by U+FFFD, because command lines may contain any bytes."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# struct pidfd_info of Linux 6.13 (include/uapi/linux/pidfd.h): mask, cgroupid, eleven IDs, exit_code.
_INFO = struct.Struct("QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3  # Linux 6.15
_MAX_STAT_BYTES = 4096
_CAP_SYS_PTRACE = 19


def has_ended(pidfd: int) -> bool:
    """Returns whether a process has ended, even if its parent has not waited for it yet."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def exit_status(pidfd: int, pid: int, uid: int) -> int | None:
    """Returns the exit code of a process, or the negative number of the signal that ended it; None if unknown.

    Since Linux 6.15, a pidfd has the status after the parent has waited. /proc/PID/stat has the status until the parent
    waits, but shows 0 to users who may not trace the process.
    """
    status = _from_pidfd(pidfd)
    if status is None and (uid == os.geteuid() or _may_trace()):
        status = _from_stat(pid)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _from_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # Linux is older than 6.13, or the process still runs
        return None
    fields = _INFO.unpack(info)
    return int(fields[-1]) if fields[0] & _WITH_EXIT else None


def _from_stat(pid: int) -> int | None:
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            fields = file.read(_MAX_STAT_BYTES).rpartition(b")")[2].split()
        return int(fields[49]) if fields[0] == b"Z" else None
    except (OSError, ValueError, IndexError):
        return None


@cache
def _may_trace() -> bool:
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


_READS = 3  # times that the job of a process is read: a new process may still change its process group
_BOOT_ID = "sys/kernel/random/boot_id"
_HOST_UID_MAP = b"0 0 4294967295"  # the uid_map file of a process in the host's user namespace


class JobReader:
    """Reads and caches the job of each process. To be used in the event loop's thread only."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._jobs: dict[int, tuple[float | None, int, Job | None]] = {}
        self._groups: dict[int, int] = {}  # by PID
        self._names: dict[int, str] = {}  # by group; kept while a process of the group is known

    def forget_others(self, pids: Iterable[int]) -> None:
        gone = self._jobs.keys() - set(pids)
        for pid in gone:
            del self._jobs[pid], self._groups[pid]
        if gone:
            known = set(self._groups.values())
            self._names = {group: name for group, name in self._names.items() if group in known}

    def job_of(self, pid: int, seen_at_unix_seconds: float | None) -> Job | None:
        """Returns the job of the process that has this PID and was first seen at this time; None if unknown."""
        cached = self._jobs.get(pid)
        if cached is None or cached[0] != seen_at_unix_seconds:
            cached = seen_at_unix_seconds, 0, None
        seen_at, reads, job = cached
        if reads < _READS:
            job = self._read(pid)
            self._jobs[pid] = seen_at, reads + 1, job
        return job

    def _read(self, pid: int) -> Job | None:
        directory = self._proc / str(pid)
        group = self._groups[pid] = group_of(pid, read_limited(directory / "stat", _MAX_STAT_BYTES))
        if not group:
            return None
        boot_id = read_limited(self._proc / _BOOT_ID, 64).decode("ascii", "replace").strip()
        launch = parse_launch(read_environment(directory, VARIABLES), boot_id)
        run = None if launch.run is None else run_id(*launch.run, _owner(directory))
        return Job(
            launch.name or self._name(group, directory),
            launch.rank,
            launch.world_size,
            run_id=run,
            first_rank_here=launch.first_rank,
            ranks_here=launch.local_world_size,
        )

    def _name(self, group: int, directory: Path) -> str:
        """Names a group after the script of its first known process. The number tells runs of one script apart."""
        if group not in self._names:
            arguments = read_limited(directory / "cmdline", MAX_COMMAND_CHARACTERS).split(b"\0")
            script = script_name([_utf8_text(os.fsdecode(argument)) for argument in arguments])
            if not script or not script.isprintable():
                return f"process group {group}"
            self._names[group] = f"{_cut(script)} ({group})"
        return self._names[group]


def _owner(directory: Path) -> str:
    """Returns the process's user for the run ID, so that no other user can fake the run; "" in a user namespace."""
    if read_limited(directory / "uid_map", 256).split() == _HOST_UID_MAP.split():
        with contextlib.suppress(OSError):
            return f"user {directory.stat().st_uid}"
    return ""


def group_of(pid: int, stat: bytes) -> int:
    """Returns the number of a process's job from /proc/PID/stat: the launcher's PID or the process group; 0 if unknown.

    torchrun starts each worker in its own session; other launchers keep the workers in one process group.
    """
    parts = stat.rpartition(b")")[2].split()
    try:
        parent, group, session = (int(part) for part in parts[1:4])
    except ValueError:
        return 0
    return parent if session == pid and parent > 1 else max(0, group)


_MOST_RANKS = 2**20
_LONGEST_ID = 256
_LONGEST_NAME = 64
_RUN_ID_BYTES = 6

_RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"NEURON_PJRT_PROCESS_INDEX")
_WORLD_SIZES = (b"WORLD_SIZE", b"SLURM_NTASKS", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
_PJRT_DEVICES = b"NEURON_PJRT_PROCESSES_NUM_DEVICES"  # device count of each process, comma-separated
_TORCHRUN = b"TORCHELASTIC_RUN_ID"
_STORE = (b"MASTER_ADDR", b"MASTER_PORT")
_ROOT = b"NEURON_RT_ROOT_COMM_ID"  # "address:port" of rank 0 for the original runtime's collectives
_MPI = (b"PMIX_NAMESPACE", b"OMPI_MCA_orte_hnp_uri", b"PMI_PORT")  # run IDs of Open MPI 5, Open MPI 4 and MPICH
_SLURM = (b"SLURM_CLUSTER_NAME", b"SLURM_JOB_ID", b"SLURM_STEP_ID")
_LOCAL_RANK, _LOCAL_WORLD_SIZE = b"LOCAL_RANK", b"LOCAL_WORLD_SIZE"
_LOCAL_WORLD_SIZES = (_LOCAL_WORLD_SIZE, b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS")

VARIABLES = frozenset(
    (*_RANKS, *_WORLD_SIZES, _PJRT_DEVICES, _TORCHRUN, *_STORE, _ROOT, *_MPI, *_SLURM, _LOCAL_RANK, *_LOCAL_WORLD_SIZES)
)
_NO_ID = "none"  # the default of torchrun's run ID
_LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - only compared with


@dataclass(frozen=True, slots=True)
class Launch:
    """Rank and run of a process, from its launcher's environment variables. None: the variable is not set.

    `run` identifies a run and is equal on all its hosts; `name` is its display name. Both are None for a run on one
    host. `first_rank` and `local_world_size` describe the ranks of this host, which torchrun numbers without gaps.
    """

    rank: int | None = None
    world_size: int | None = None
    first_rank: int | None = None
    local_world_size: int | None = None
    run: tuple[str, ...] | None = None
    name: str | None = None


def parse_launch(environment: Mapping[bytes, bytes], boot_id: str) -> Launch:
    """Parses a launcher's environment variables. `boot_id` distinguishes loopback addresses of different hosts."""
    rank, world_size = _first_number(environment, _RANKS), _first_number(environment, _WORLD_SIZES)
    if world_size is None and _PJRT_DEVICES in environment:
        world_size = environment[_PJRT_DEVICES].count(b",") + 1
    local_world_size = _first_number(environment, _LOCAL_WORLD_SIZES)
    local_rank = _first_number(environment, (_LOCAL_RANK,))
    first = None
    if _TORCHRUN in environment and rank is not None and local_rank is not None and local_rank <= rank:
        first = rank - local_rank
    launch = Launch(rank, world_size, first, None if first is None else local_world_size)
    is_of_one_host = world_size is not None and local_world_size is not None and world_size <= local_world_size
    if rank is None or is_of_one_host or world_size == 1:
        return launch
    run, name = _run(environment, boot_id)
    return replace(launch, run=run, name=name)


def run_id(*parts: str) -> str:
    """Hashes the parts of a run's identity to 12 hexadecimal digits."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=_RUN_ID_BYTES).hexdigest()


def _run(environment: Mapping[bytes, bytes], boot_id: str) -> tuple[tuple[str, ...] | None, str | None]:
    """Returns the parts of the run's identity, and the run's display name; each is None if unknown."""
    address, port = (_one_line_value(environment, name) for name in _STORE)
    store = f"{address}:{port}" if address and port else ""
    if _TORCHRUN in environment and store:
        # Many runs have the ID "none" or a reused ID, so the store's address is part of the identity.
        run = _one_line_value(environment, _TORCHRUN)
        name = f"torchrun at {store}" if run in ("", _NO_ID) else f"torchrun {run}"
        return ("torchrun", run, store, _place(store, boot_id)), _cut(name)
    if any(variable in environment for variable in _MPI):
        return ("MPI", *(_one_line_value(environment, variable) for variable in _MPI)), None
    if b"SLURM_PROCID" in environment and _one_line_value(environment, b"SLURM_JOB_ID"):
        return ("Slurm", *(_one_line_value(environment, variable) for variable in _SLURM)), None
    root = store or _one_line_value(environment, _ROOT)
    return (("store", root, _place(root, boot_id)), _cut(f"ranks of {root}")) if root else (None, None)


def _place(store: str, boot_id: str) -> str:
    """Returns the boot ID if the rendezvous store has a loopback address, which is unique only on one host; else ""."""
    return boot_id if store.lower().startswith(_LOOPBACK) else ""


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _one_line_value(environment: Mapping[bytes, bytes], name: bytes) -> str:
    """Returns an environment variable's value; "" if it is missing, too long or not printable."""
    value = environment.get(name, b"")
    text = value.decode("utf-8", "replace")
    return text if len(value) <= _LONGEST_ID and text.isprintable() else ""


def _first_number(environment: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> int | None:
    for name in names:
        text = environment.get(name, b"")
        if text.isdigit() and len(text) <= 7 and int(text) < _MOST_RANKS:
            return int(text)
    return None


MAX_ENVIRONMENT_BYTES = 512 * 2**10


def read_limited(path: Path, most_bytes: int) -> bytes:
    """Reads at most `most_bytes` of a file. Returns b"" if the file can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def read_environment(directory: Path, names: Container[bytes]) -> dict[bytes, bytes]:
    """Reads the environment variables `names` of the process whose /proc/PID is `directory`."""
    entries = read_limited(directory / "environ", MAX_ENVIRONMENT_BYTES).split(b"\0")
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name in names}
