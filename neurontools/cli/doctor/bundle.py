"""A bundle for a bug report: what was found, redacted, in one file that its sender can look through first."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata

from neurontools.cli.doctor import daemons, surroundings
from neurontools.cli.doctor.check import Check, Place
from neurontools.cli.doctor.driver import driver_version
from neurontools.cli.doctor.redaction import Redactor
from neurontools.cli.doctor.report import report_json, report_text
from neurontools.driver.devices import list_device_directories
from neurontools.driver.kernel_log import parse_kernel_record
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls_by_line

REDACTED = "commands, users, tags, jobs, pods, host names, addresses, AWS ids, secrets in variables"
_FOLDER = "neuron-doctor"
_MOST_ENTRIES = 20_000
_MOST_RECORDS, _MOST_KEPT_RECORDS = 50_000, 500
_MOST_RECORD_BYTES = 8192
_ABOUT_US = re.compile(r"neuron|\bnd\d", re.IGNORECASE)


def contents(checks: Sequence[Check], place: Place) -> dict[str, str]:
    """The files of the bundle, by name, with all in them redacted."""
    redactor = Redactor()
    redactor.keep(driver_version(place.roots))
    snapshot = daemons.snapshot(place)
    if snapshot is not None:
        redactor.learn(snapshot)
    files = {
        "report.txt": report_text(checks),
        "report.json": report_json(checks),
        "packages.txt": _packages(),
        "variables.txt": "".join(f"{name}={value}\n" for name, value in surroundings.variables(place)),
        "driver-tree.txt": _tree(place),
        "kernel-log.txt": _kernel_log(place),
    }
    made = {name: escape_controls_by_line(redactor.text(text)) for name, text in files.items() if text}
    if snapshot is not None:
        made["snapshot.json"] = json_text(redactor.value(asdict(snapshot)), indent=1) + "\n"
    return made


def listing(files: dict[str, str], path: str) -> str:
    """What would be written."""
    sizes = "".join(f"  {name:<18}{len(text.encode()):>9} bytes\n" for name, text in files.items())
    return f"{path} would hold:\n{sizes}without {REDACTED}\n"


def write(files: dict[str, str], path: str) -> None:
    """Write the bundle, for this user alone to read; OSError."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(gzip.compress(archive.getvalue(), mtime=0))


def _packages() -> str:
    """All that is installed beside us: names and versions."""
    found = {(each.metadata["Name"] or "", each.version) for each in metadata.distributions()}
    return "".join(f"{name}=={version}\n" for name, version in sorted(found) if name)


def _tree(place: Place) -> str:
    """The names of the first device's files, which tell the layout; nothing that is in them."""
    directories = list_device_directories(place.roots) if place.roots.has_devices else []
    if not directories:
        return ""
    top, lines = directories[0].path, []
    for directory, below, names in os.walk(top):
        below.sort()
        lines += [f"{directory[len(top) :]}/{name}" for name in sorted(names)]
        if len(lines) > _MOST_ENTRIES:
            break
    return "\n".join((*lines[:_MOST_ENTRIES], ""))


def _kernel_log(place: Place) -> str:
    """What the kernel has logged about Neuron devices lately, where this user may read it."""
    kept: list[str] = []
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{place.roots.dev}/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    data = os.read(descriptor, _MOST_RECORD_BYTES)
                except BrokenPipeError:  # overwritten before it was read
                    continue
                except BlockingIOError:
                    break
                if not data:
                    break
                for line in data.split(b"\n"):
                    record = parse_kernel_record(line)
                    if record is not None and _ABOUT_US.search(record.text):
                        kept.append(f"{record.microseconds / 1e6:.6f} {record.text}")
        finally:
            os.close(descriptor)
    return "\n".join((*kept[-_MOST_KEPT_RECORDS:], "")) if kept else ""
