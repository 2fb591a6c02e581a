"""Support bundle for a bug report: results of neuron-doctor and data of the host, without texts of users.

Everything in it is on a list of harmless values: messages of the tools' own source, numbers, versions, names of known
packages, variables and driver files. All other texts are replaced by their kind and length.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import platform
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from importlib import metadata
from typing import Any

from neurontools import catalog
from neurontools.cli.doctor.checks import (
    AWS_PACKAGES,
    first_snapshot,
    report_json,
    report_text,
    required_packages,
)
from neurontools.cli.doctor.known_texts import VERSION, KnownTexts
from neurontools.diagnose.host_checks import KNOWN_VARIABLES, CheckContext, CheckResult, relevant_variables
from neurontools.driver import environment
from neurontools.driver.devices import list_device_directories
from neurontools.driver.kernel_log import (
    HARDWARE_ERRORS,
    HardwareError,
    KernelRecord,
    parse_driver_line,
    parse_hardware_error,
    parse_kernel_record,
)
from neurontools.driver.sysfs_files import CORE_FILES, DEVICE_FILES
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls_by_line

CONTENT = "messages of these tools, numbers and versions; other texts are replaced by their kind and length"
_FOLDER = "neuron-doctor"
_MOST_ENTRIES = 20_000
_MOST_RECORDS, _MOST_EXCERPT_RECORDS = 50_000, 500
_MOST_RECORD_BYTES = 8192
_ABOUT_US = re.compile(r"neuron|\bnd\d", re.IGNORECASE)


def bundle_contents(checks: Sequence[CheckResult], place: CheckContext) -> dict[str, str]:
    """Returns the text of each file of the bundle, by file name. It contains no text of users, processes or jobs."""
    known = KnownTexts(catalog.names())
    public = [replace(check, result=known.public(check.result), action=known.public(check.action)) for check in checks]
    files = {
        "report.txt": report_text(public),
        "report.json": report_json(public),
        "packages.txt": _platform() + _known_packages(),
        "variables.txt": _known_variables(place, known),
        "driver-tree.txt": _driver_tree(place, known),
        "kernel-log.txt": _kernel_log_excerpt(place),
    }
    contents = {name: escape_controls_by_line(text) for name, text in files.items() if text}
    snapshot = first_snapshot(place)
    if snapshot is not None:
        contents["snapshot.json"] = json_text(public_value(asdict(snapshot), known), indent=1) + "\n"
    return contents


def bundle_listing(files: dict[str, str], path: str) -> str:
    sizes = "".join(f"  {name:<18}{len(text.encode()):>9} bytes\n" for name, text in files.items())
    return f"{path} would contain:\n{sizes}with {CONTENT}\n"


def write_bundle(files: dict[str, str], path: str) -> None:
    """Writes the bundle to a new file with mode 0600. Raises OSError if that fails, and FileExistsError for any file
    or link at the path.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(gzip.compress(archive.getvalue(), mtime=0))


_FRAMEWORKS = (
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch-lightning",
    "peft",
    "trl",
    "torchft-nightly",
    "optimum-neuron",
    "numpy",
    "ray",
    "neurontools",
)
_OPTIONAL = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


def _platform() -> str:
    release = re.match(r"\d+(?:\.\d+){0,2}", platform.release())
    machine = platform.machine() if platform.machine() in ("x86_64", "aarch64") else "other"
    return (
        f"# {platform.system()} {release[0] if release else 'unknown'} {machine}, Python {platform.python_version()}\n"
    )


def _known_packages() -> str:
    """Returns name and version of the packages that matter to these tools, and the number of all others."""
    installed = {(each.metadata["Name"] or "").lower(): each.version for each in metadata.distributions()}
    names = {*required_packages(), *AWS_PACKAGES, *_FRAMEWORKS, *_OPTIONAL} & installed.keys()
    lines = [
        f"{name}=={installed[name] if VERSION.fullmatch(installed[name]) else '<other version>'}\n"
        for name in sorted(names)
    ]
    return "".join(lines) + f"# {len(installed) - len(names)} other packages\n"


_PLAIN = re.compile(r"\d{1,4}(?:[-,] ?\d{1,4}){0,63}")
_PUBLIC_VALUES = {
    environment.VISIBLE_CORES: _PLAIN,
    environment.NUM_CORES: _PLAIN,
    environment.LNC: _PLAIN,
    environment.LNC_ALIAS: _PLAIN,
    "NEURON_FAIL_ON_NAN": _PLAIN,
    "NEURON_RT_EXEC_TIMEOUT": _PLAIN,
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": _PLAIN,
    "NEURON_RT_INSPECT_ENABLE": _PLAIN,
    "NEURON_RT_LOG_LEVEL": re.compile(r"(?i:trace|debug|info|warn|warning|error|off)"),
}


def _known_variables(place: CheckContext, known: KnownTexts) -> str:
    """Returns the variables of the runtime. Keeps known names, and values that only a number or a level can have."""
    lines = []
    for name, _ in relevant_variables(place):
        value, form = place.environment[name], _PUBLIC_VALUES.get(name)
        is_public = form is not None and form.fullmatch(value)
        shown_name = name if name in KNOWN_VARIABLES else known.replacement(name, "variable")
        lines.append(f"{shown_name}={value if is_public else known.replacement(value, 'value')}\n")
    return "".join(lines)


def _driver_tree(place: CheckContext, known: KnownTexts) -> str:
    """Returns the file names, without contents, in the sysfs directory of the first device.

    In the kernel's own sysfs all names are the driver's. In another tree, only the known names are kept.
    """
    directories = list_device_directories(place.roots) if place.roots.has_devices else []
    if not directories:
        return ""
    top, lines = directories[0].path, []
    names_are_public = _is_kernel_sysfs(top)
    public_names = {"neuron_core", *(part for file in (*DEVICE_FILES, *CORE_FILES) for part in file.path.split("/"))}

    def shown(name: str) -> str:
        stem = name.rstrip("0123456789")
        is_known = name in public_names or (stem in public_names and len(name) - len(stem) <= 4)
        return name if names_are_public or is_known else known.replacement(name, "name")

    for directory, below, names in os.walk(top):
        below.sort()
        shown_directory = "/".join(shown(part) for part in directory[len(top) :].split("/"))
        lines += [f"{shown_directory}/{shown(name)}" for name in sorted(names)]
        if len(lines) > _MOST_ENTRIES:
            break
    return "\n".join((*lines[:_MOST_ENTRIES], ""))


def _is_kernel_sysfs(path: str) -> bool:
    try:
        return os.stat(path).st_dev == os.stat("/sys/kernel").st_dev != os.stat("/").st_dev  # noqa: PTH116
    except OSError:
        return False


def _kernel_log_excerpt(place: CheckContext) -> str:
    """Returns the events in the latest kernel messages about Neuron devices, if this user may read them."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{place.roots.dev}/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    data = os.read(descriptor, _MOST_RECORD_BYTES)
                except BrokenPipeError:  # the kernel overwrote the record before this read
                    continue
                except BlockingIOError:
                    break
                if not data:
                    break
                for line in data.split(b"\n"):
                    record = parse_kernel_record(line)
                    if record is not None and _ABOUT_US.search(record.text):
                        lines.append(_public_record(record))
        finally:
            os.close(descriptor)
    return "\n".join((*lines[-_MOST_EXCERPT_RECORDS:], "")) if lines else ""


def _public_record(record: KernelRecord) -> str:
    head = f"{record.microseconds / 1e6:.6f} facility {record.facility} level {record.level}: "
    error, message = parse_hardware_error(record.text), parse_driver_line(record.text)
    if error is not None:
        name = error.name if error.name in HARDWARE_ERRORS else "OTHER_ERROR"
        return head + HardwareError(name, error.device_index, error.core_index).text()
    if message is not None:
        return f"{head}{message.event} of device {'unknown' if message.device_index is None else message.device_index}"
    return f"{head}<message, {len(record.text)} characters>"


# Fields of a snapshot that hold messages or terms of the tools, and forms of other fields that no user can choose.
_MESSAGE_FIELDS = frozenset(
    (
        *("warnings", "reason", "action", "unknown_reasons", "measured", "fix", "effect"),
        *("kind", "part", "state", "topology", "device_type", "synthetic_load", "rule", "inferred_fields"),
        *("unhealthy_components", "latest_collective", "instance_type", "counter", "ratio"),
    )
)
_FORMS = {
    "driver_version": VERSION,
    "runtime_version": VERSION,
    "daemon_version": VERSION,
    "device_version": re.compile(r"v\d[a-z]?"),
    "neuroncore_version": re.compile(r"v\d[a-z]?"),
    "bdf": re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
    "cpu_affinity": re.compile(r"[\d,-]{1,200}"),
    "numa_node": re.compile(r"-?\d{1,3}"),
}
_REMOVED_FIELDS = frozenset(("uid", "injected_by_uid"))


def public_value(value: Any, known: KnownTexts, field: str = "") -> Any:
    """Returns the public copy of a value of a snapshot. `field` is the name of the field that has the value."""
    if isinstance(value, Mapping):
        return {name: public_value(part, known, name) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [public_value(part, known, field) for part in value]
    if field in _REMOVED_FIELDS:
        return None
    if not isinstance(value, str) or isinstance(value, Enum):
        return value
    if field in _MESSAGE_FIELDS:
        return known.public(value)
    form = _FORMS.get(field)
    return value if form is not None and form.fullmatch(value) else known.replacement(value, field or "text")
