"""What a profile becomes at its end: the files of the viewers, beside the file of each worker."""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Sequence
from pathlib import Path

from neurontools import catalog
from neurontools.profile import Profile, ProfileMetadata
from neurontools.profile.formats.chrome_trace import write_trace
from neurontools.profile.formats.memory_snapshot import write_snapshot
from neurontools.profile.formats.xplane import CorePeaks, write_xplane

_TRACE = ".pt.trace.json.gz"
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_MOST_CHARACTERS = 64  # of a host name, as Linux has it
PLUGIN = Path("plugins") / "profile"


def run_name(began_ns: int) -> str:
    """How TensorBoard's Profile tab names a run; such names sort by time."""
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(began_ns // 10**9))


def worker_name(about: ProfileMetadata) -> str:
    """A worker in the names of files. What a profile says of its host may be anything: a name leads nowhere else."""
    return f"{_ODD.sub('_', about.host)[:_MOST_CHARACTERS].lstrip('.')}-rank{about.rank}-{about.pid}"


def peaks_of(about: ProfileMetadata) -> CorePeaks:
    """What a core of a worker can do by the catalog, in bfloat16; unknown where that has no such cores."""
    try:
        kind = catalog.load(about.instance_type or "")
        cores_per_device = kind.logical_cores_per_device(about.logical_neuroncore_config)
    except (catalog.UnknownInstanceType, ValueError):
        return CorePeaks()
    bandwidth = kind.family.memory_bandwidth_bytes_per_second.value
    return CorePeaks(
        catalog.peak_flops_per_logical_core(kind.name, about.logical_neuroncore_config),
        None if bandwidth is None else bandwidth / cores_per_device,
    )


def write_ranks(profiles: Sequence[Profile], directory: Path) -> Path:
    """Writes a trace of all workers of a host, side by side on one clock. Raises OSError."""
    path = directory / f"ranks.{profiles[0].metadata.began_ns // 10**6}.trace.json.gz"
    write_trace(path, *profiles)
    return path


def has_outputs(about: ProfileMetadata, directory: Path) -> bool:
    """Whether a worker's files are there."""
    return any(directory.glob(f"{glob.escape(worker_name(about))}.*{_TRACE}"))


def write_outputs(profile: Profile, directory: Path, run: str) -> list[Path]:
    """Writes a worker's trace, XSpace and memory snapshot into a directory; what was written. Raises OSError.

    `run` is one name for all workers of a run; empty for one by when the profile began.
    """
    run = run or run_name(profile.metadata.began_ns)
    name = worker_name(profile.metadata)
    trace = directory / f"{name}.{profile.metadata.began_ns // 10**6}{_TRACE}"
    write_trace(trace, profile)
    folder = directory / PLUGIN / run
    folder.mkdir(parents=True, exist_ok=True)
    space = folder / f"{name}.xplane.pb"
    write_xplane(profile, space, peaks_of(profile.metadata))
    snapshot = directory / f"{name}.memory_snapshot.pickle"
    write_snapshot(profile, snapshot)
    return [trace, space, snapshot]
