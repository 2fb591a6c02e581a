"""Metric families process_* and python_* of the exporting process. Names and help texts are prometheus_client's."""

from __future__ import annotations

import gc
import os
import platform
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from neurontools.exporters.exposition import FamilyDefinition, MetricFamily, MetricKind, label_text

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STAT = Path("/proc/self/stat")
# Positions of fields in /proc/self/stat, counted after the command name; see proc(5).
_USER, _SYSTEM, _START, _VIRTUAL, _RESIDENT = 11, 12, 19, 20, 21


def process_families() -> Iterator[MetricFamily]:
    """Yields the families of this process. Families that /proc provides are empty if /proc can't be read."""
    values: dict[str, float] = {}
    try:
        stat = _STAT.read_text("ascii", "replace").rpartition(")")[2].split()
        values["process_virtual_memory_bytes"] = int(stat[_VIRTUAL])
        values["process_resident_memory_bytes"] = int(stat[_RESIDENT]) * _PAGE_BYTES
        values["process_start_time_seconds"] = _boot_unix_seconds() + int(stat[_START]) / _TICKS
        values["process_cpu_seconds"] = (int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS
        values["process_open_fds"] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except (OSError, ValueError, IndexError):
        values.clear()
    values["process_max_fds"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for definition in _PROCESS:
        yield MetricFamily(definition, [("", values[definition.name])] if definition.name in values else [])
    statistics = [(label_text([("generation", str(index))]), each) for index, each in enumerate(gc.get_stats())]
    for key, definition in _COLLECTIONS.items():
        yield MetricFamily(definition, [(labels, each[key]) for labels, each in statistics])
    yield MetricFamily(_PYTHON, [(_python_labels(), 1)])


_PROCESS = (
    FamilyDefinition("process_virtual_memory_bytes", MetricKind.GAUGE, "Virtual memory size in bytes."),
    FamilyDefinition("process_resident_memory_bytes", MetricKind.GAUGE, "Resident memory size in bytes."),
    FamilyDefinition(
        "process_start_time_seconds", MetricKind.GAUGE, "Start time of the process since unix epoch in seconds."
    ),
    FamilyDefinition("process_cpu_seconds", MetricKind.COUNTER, "Total user and system CPU time spent in seconds."),
    FamilyDefinition("process_open_fds", MetricKind.GAUGE, "Number of open file descriptors."),
    FamilyDefinition("process_max_fds", MetricKind.GAUGE, "Maximum number of open file descriptors."),
)
_COLLECTIONS = {
    "collected": FamilyDefinition("python_gc_objects_collected", MetricKind.COUNTER, "Objects collected during gc"),
    "uncollectable": FamilyDefinition(
        "python_gc_objects_uncollectable", MetricKind.COUNTER, "Uncollectable objects found during GC"
    ),
    "collections": FamilyDefinition(
        "python_gc_collections", MetricKind.COUNTER, "Number of times this generation was collected"
    ),
}
_PYTHON = FamilyDefinition("python", MetricKind.INFO, "Python platform information")


@cache
def _boot_unix_seconds() -> int:
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    raise ValueError("/proc/stat has no btime")


@cache
def _python_labels() -> str:
    names = ("major", "minor", "patchlevel")
    versions = zip(names, platform.python_version_tuple(), strict=True)
    implementation = platform.python_implementation()
    return label_text([("implementation", implementation), *versions, ("version", platform.python_version())])
