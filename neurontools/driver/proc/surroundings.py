"""What surrounds one process: its environment, who started it, and whom it has started, as this user may see them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from neurontools.driver.sysfs.process_files import ProcessFiles, boot_unix_seconds
from neurontools.driver.sysfs.small_file import read_all, read_bytes
from neurontools.util.process_text import shown_value

MOST_PROCESSES = 64
MOST_DEEP = 8
_SAME_START_SECONDS = 2.0  # the clock may have been set a little since


@dataclass(frozen=True, slots=True)
class Relative:
    """A process of the tree. `depth`: how far from the first, which is 0."""

    depth: int
    pid: int
    command: str  # "" when it can't be read


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`problem` is "", or says why nothing is known; secrets in the environment are hidden, None: not for us to see."""

    pid: int
    problem: str = ""
    environment: tuple[tuple[str, str], ...] | None = None
    tree: tuple[Relative, ...] = ()  # from the first that is known down to those that it has started


def surroundings(pid: int, started_at_unix_seconds: float | None, proc: str = "/proc") -> Surroundings:
    """The surroundings of the process that has had this PID since then, on this host."""
    files = ProcessFiles(proc, pid)
    times = files.times()
    if times is None:
        return Surroundings(pid, "there is no such process here; it has ended, or is on another host or in a container")
    boot = boot_unix_seconds(proc)
    if started_at_unix_seconds is not None and boot is not None:
        apart_seconds = abs(boot + times.started_after_boot_seconds - started_at_unix_seconds)
        if apart_seconds > _SAME_START_SECONDS:
            return Surroundings(pid, "another process has this PID here: the one shown has ended, or is elsewhere")
    environment = files.environment()
    shown = None
    if environment is not None:
        shown = tuple((name, shown_value(name, value)) for name, value in sorted(environment.items()))
    return Surroundings(pid, "", shown, tree_of(pid, proc))


def tree_of(pid: int, proc: str = "/proc") -> tuple[Relative, ...]:
    """The line of those who started a process, itself, and those that it has started; at most MOST_PROCESSES."""
    ancestors: list[int] = []
    above = _parent(pid, proc)
    while above > 0 and above not in ancestors and len(ancestors) < MOST_DEEP:
        ancestors.insert(0, above)
        above = _parent(above, proc)
    found = [Relative(depth, one, _command(one, proc)) for depth, one in enumerate((*ancestors, pid))]
    _add_children(pid, len(ancestors) + 1, proc, found)
    return tuple(found)


def _add_children(pid: int, depth: int, proc: str, found: list[Relative]) -> None:
    if depth > 2 * MOST_DEEP:
        return
    for child in _children(pid, proc):
        if len(found) >= MOST_PROCESSES:
            return
        found.append(Relative(depth, child, _command(child, proc)))
        _add_children(child, depth + 1, proc, found)


def _parent(pid: int, proc: str) -> int:
    """0: there is none, or it can't be seen."""
    try:
        return int(read_bytes(f"{proc}/{pid}/stat").rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int, proc: str) -> list[int]:
    """The children of all threads, as CONFIG_PROC_CHILDREN of the kernel has them; none without."""
    children: list[int] = []
    try:
        threads = os.listdir(f"{proc}/{pid}/task")[:1024]  # noqa: PTH208
    except OSError:
        return []
    for thread in threads:
        try:
            words = read_all(f"{proc}/{pid}/task/{thread}/children", 2**16).split()
        except OSError:
            continue
        children += [int(word) for word in words if word.isdigit()]
    return sorted(children)


def _command(pid: int, proc: str) -> str:
    return ProcessFiles(proc, pid).command()
