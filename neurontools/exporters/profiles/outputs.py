"""What a profile becomes at its end: the files of the viewers, beside the file of each worker."""

from __future__ import annotations

import time
from pathlib import Path

from neurontools.exporters.profiles.chrome_trace import write_trace
from neurontools.exporters.profiles.memory_snapshot import write_snapshot
from neurontools.exporters.profiles.xplane import Peaks, write_xplane
from neurontools.profile import Metadata, Profile

PLUGIN = Path("plugins") / "profile"


def run_name(began_ns: int) -> str:
    """How TensorBoard's Profile tab names a run; such names sort by time."""
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(began_ns // 10**9))


def worker_name(about: Metadata) -> str:
    """A worker in the names of files."""
    return f"{about.host}-rank{about.rank}-{about.pid}"


def write_outputs(profile: Profile, directory: Path, run: str, peaks: Peaks | None = None) -> list[Path]:
    """Writes a worker's trace, XSpace and memory snapshot into a directory; what was written. Raises OSError.

    `run` is one name for all workers of a run.
    """
    name = worker_name(profile.metadata)
    trace = directory / f"{name}.{profile.metadata.began_ns // 10**6}.pt.trace.json.gz"
    write_trace(profile, trace)
    folder = directory / PLUGIN / run
    folder.mkdir(parents=True, exist_ok=True)
    space = folder / f"{name}.xplane.pb"
    write_xplane(profile, space, peaks)
    snapshot = directory / f"{name}.memory_snapshot.pickle"
    write_snapshot(profile, snapshot)
    return [trace, space, snapshot]
