"""Support bundle for a bug report: redacted results of neuron-doctor and data of the host."""

from __future__ import annotations

import contextlib
import getpass
import gzip
import io
import ipaddress
import os
import re
import socket
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from neurontools.cli.doctor.checks import (
    CheckResult,
    DoctorContext,
    driver_version,
    first_snapshot,
    relevant_variables,
    report_json,
    report_text,
)
from neurontools.driver.devices import list_device_directories
from neurontools.driver.kernel_log import parse_kernel_record
from neurontools.model import EndedProcess, Process, Snapshot
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls_by_line

REDACTED = "commands, users, tags, jobs, pods, host names, addresses, AWS ids, secrets in variables"
_FOLDER = "neuron-doctor"
_MOST_ENTRIES = 20_000
_MOST_RECORDS, _MOST_EXCERPT_RECORDS = 50_000, 500
_MOST_RECORD_BYTES = 8192
_ABOUT_US = re.compile(r"neuron|\bnd\d", re.IGNORECASE)


def bundle_contents(checks: Sequence[CheckResult], place: DoctorContext) -> dict[str, str]:
    """Returns the redacted text of each file of the bundle, by file name."""
    redactor = Redactor()
    redactor.exempt_version(driver_version(place.roots))
    snapshot = first_snapshot(place)
    if snapshot is not None:
        redactor.register_snapshot(snapshot)
    files = {
        "report.txt": report_text(checks),
        "report.json": report_json(checks),
        "packages.txt": _installed_packages(),
        "variables.txt": "".join(f"{name}={value}\n" for name, value in relevant_variables(place)),
        "driver-tree.txt": _driver_tree(place),
        "kernel-log.txt": _kernel_log_excerpt(place),
    }
    contents = {name: escape_controls_by_line(redactor.text(text)) for name, text in files.items() if text}
    if snapshot is not None:
        contents["snapshot.json"] = json_text(redactor.value(asdict(snapshot)), indent=1) + "\n"
    return contents


def bundle_listing(files: dict[str, str], path: str) -> str:
    sizes = "".join(f"  {name:<18}{len(text.encode()):>9} bytes\n" for name, text in files.items())
    return f"{path} would contain:\n{sizes}without {REDACTED}\n"


def write_bundle(files: dict[str, str], path: str) -> None:
    """Writes the bundle. Raises OSError if that fails. A new file gets mode 0600; an existing file keeps its mode."""
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


def _installed_packages() -> str:
    found = {(each.metadata["Name"] or "", each.version) for each in metadata.distributions()}
    return "".join(f"{name}=={version}\n" for name, version in sorted(found) if name)


def _driver_tree(place: DoctorContext) -> str:
    """Returns the file names, without contents, in the sysfs directory of the first device."""
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


def _kernel_log_excerpt(place: DoctorContext) -> str:
    """Returns the latest kernel messages about Neuron devices, if this user may read them."""
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
                        lines.append(f"{record.microseconds / 1e6:.6f} {record.text}")
        finally:
            os.close(descriptor)
    return "\n".join((*lines[-_MOST_EXCERPT_RECORDS:], "")) if lines else ""


COMMAND = "<command>"
_SHORTEST = 3  # shorter command names are kept: they also occur in ordinary words
_MOST_WORDS = 5000
_NOT_REDACTED = frozenset({"root", "nobody", "localhost", "default", "python", "python3", "neurond", "neuron"})
# Snapshot fields that contain names, and the kind of placeholder that replaces each name.
_NAME_FIELDS = {
    "user": "user",
    "tag": "tag",
    "pod_name": "pod",
    "pod_namespace": "namespace",
    "pod_uid": "pod-uid",
    "container_id": "container",
    "container_name": "container-name",
    "instance_id": "instance",
    "instance_name": "instance-name",
    "subnet_id": "subnet",
    "ami_id": "image",
    "job": "job",
    "name": "name",
}
_REMOVED_FIELDS = ("uid",)
_ADDRESS = re.compile(
    r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)|(?<![\w.:-])[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+(?![\w:-])"
)
_VERSION_BEFORE = re.compile(r"version[:= ]*$|[<>=]=$", re.IGNORECASE)
_REDACTION_PATTERNS = (
    (re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "<mac>"),
    (re.compile(r"\barn:aws[\w-]*:\S+"), "<arn>"),
    (re.compile(r"\b(?:i|eni|subnet|vpc|ami|vol|sg)-[0-9a-f]{8,17}\b"), "<aws-id>"),
    (re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}(?:\.[\w.-]+)?"), "<host>"),
    (re.compile(r"(?<=://)[^\s/@]+@"), "<login>@"),
    (re.compile(r"(?<![\w.+<>-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
    (re.compile(r"(?<=/home/)[^\s/:'\"]+"), "<user>"),
)


class Redactor:
    """Replaces names, addresses and secrets. The same name always gets the same placeholder."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        self._versions: set[str] = set()
        host = socket.gethostname()
        for name in (host, host.partition(".")[0], socket.getfqdn() if "." in host else host):
            self.placeholder(name, "host")
        for name in _own_user_names():
            self.placeholder(name, "user")

    def placeholder(self, word: str, kind: str) -> str:
        """Registers a name for redaction and returns its placeholder. Returns a generic name or a number unchanged."""
        if word in _NOT_REDACTED or not word or word.isdigit():
            return word
        if word not in self._words:
            if len(self._words) >= _MOST_WORDS:
                return f"<{kind}>"
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[word] = f"<{kind}-{self._counts[kind]}>"
            self._pattern = None
        return self._words[word]

    def exempt_version(self, version: str | None) -> None:
        """Exempts a version number from redaction, because it may look like an IP address."""
        self._versions.add(version or "")

    def register_snapshot(self, snapshot: Snapshot) -> None:
        """Registers the names of a snapshot for redaction, and exempts its version numbers."""
        self.exempt_version(snapshot.instance.driver_version)
        for process in snapshot.processes:
            self.exempt_version(process.runtime_version)
        everybody: tuple[Process | EndedProcess, ...] = (*snapshot.processes, *snapshot.ended)
        for one in everybody:
            self.placeholder(one.user or "", "user")
            if one.tag != str(one.pid):
                self.placeholder(one.tag, "tag")
            if len(one.command) >= _SHORTEST:
                self._words.setdefault(one.command, COMMAND)
        for allocation in snapshot.pod_allocations:
            self.placeholder(allocation.pod_name, "pod")
            self.placeholder(allocation.pod_namespace, "namespace")
        self._pattern = None

    def text(self, text: str) -> str:
        """Returns the text with placeholders for registered names, addresses and other known patterns."""
        if self._pattern is None:
            words = sorted((word for word in self._words if len(word) >= _SHORTEST), key=len, reverse=True)
            alternatives = "|".join(map(re.escape, words)) or r"(?!)"
            self._pattern = re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])")
        text = self._pattern.sub(lambda match: self._words[match[0]], text)
        for form, word in _REDACTION_PATTERNS:
            text = form.sub(word, text)
        return _ADDRESS.sub(lambda match: self._without_address(text, match), text)

    def _without_address(self, text: str, match: re.Match[str]) -> str:
        """Replaces a matched IP address by "<address>". Keeps loopback addresses and four-part version numbers."""
        found = match[0]
        bare = found.rstrip(":.")
        if bare in self._versions or _VERSION_BEFORE.search(text[: match.start()]):
            return found
        try:
            address = ipaddress.ip_address(bare)
        except ValueError:
            return found
        return found if address.is_loopback or address.is_unspecified else "<address>" + found[len(bare) :]

    def value(self, value: Any, key: str = "") -> Any:
        """Returns the redacted copy of a JSON value; `key` is its field name.

        Name fields become placeholders such as `<user-1>`. Other texts are redacted by pattern.
        """
        if isinstance(value, Mapping):
            return {name: self.value(part, name) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(part, key) for part in value]
        if key in _REMOVED_FIELDS:
            return None
        if not isinstance(value, str) or key.endswith("version"):
            return value
        if key == "command":
            return COMMAND if value else value
        if key in _NAME_FIELDS:
            return self.text(self.placeholder(value, _NAME_FIELDS[key]))
        return self.text(value)


def _own_user_names() -> Iterable[str]:
    try:
        yield getpass.getuser()
        yield Path.home().name
    except (OSError, KeyError, RuntimeError):  # no user account has this UID
        return
