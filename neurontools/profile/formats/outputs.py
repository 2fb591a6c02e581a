"""Writes the files for viewers into the directory of the profiles: traces, XSpace and memory snapshots."""

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
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MAX_HOST_CHARACTERS = 64  # length limit of host names on Linux
PLUGIN = Path("plugins") / "profile"


def run_name(began_ns: int) -> str:
    """Returns the name of a run in the form of TensorBoard's Profile tab; such names sort by time."""
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(began_ns // 10**9))


def worker_name(about: ProfileMetadata) -> str:
    """Returns a worker's name for files. Replaces unsafe characters, so the name can't leave its directory."""
    return f"{_UNSAFE.sub('_', about.host)[:_MAX_HOST_CHARACTERS].lstrip('.')}-rank{about.rank}-{about.pid}"


def peaks_of(about: ProfileMetadata) -> CorePeaks:
    """Looks up the bfloat16 peaks of a worker's cores; unknown if the catalog lacks the instance type."""
    try:
        instance = catalog.load(about.instance_type or "")
        cores_per_device = instance.logical_cores_per_device(about.logical_neuroncore_config)
    except (catalog.UnknownInstanceType, ValueError):
        return CorePeaks()
    bandwidth = instance.family.memory_bandwidth_bytes_per_second.value
    return CorePeaks(
        catalog.peak_flops_per_logical_core(instance.name, about.logical_neuroncore_config),
        None if bandwidth is None else bandwidth / cores_per_device,
    )


def write_ranks(profiles: Sequence[Profile], directory: Path) -> Path:
    """Writes one trace of all workers of a host, on one clock; raises OSError if writing fails.

    It has a folder of its own: HolisticTraceAnalysis takes each trace in its directory for that of one rank.
    """
    path = directory / "all_ranks" / f"{profiles[0].metadata.began_ns // 10**6}.trace.json.gz"
    path.parent.mkdir(exist_ok=True)
    write_trace(path, *profiles)
    return path


def has_outputs(about: ProfileMetadata, directory: Path) -> bool:
    return any(directory.glob(f"{glob.escape(worker_name(about))}.*{_TRACE}"))


def write_outputs(profile: Profile, directory: Path, run: str) -> list[Path]:
    """Writes a worker's trace, XSpace and memory snapshot into a directory; returns the paths. May raise OSError.

    `run` names the run of all workers. If it is empty, the name is the start time of the profile.
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
