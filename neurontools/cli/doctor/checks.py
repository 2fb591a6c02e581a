"""Checks of neuron-doctor: installation, driver, daemons and host environment."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path

import neurontools
from neurontools import catalog
from neurontools.client.daemon_client import Client
from neurontools.driver.devices import list_device_directories
from neurontools.driver.environment import (
    LNC,
    LNC_ALIAS,
    NUM_CORES,
    PROCESS_TAG,
    VISIBLE_CORES,
    InvalidCoreRequest,
    Roots,
    logical_neuroncore_config,
)
from neurontools.driver.inventory import read_host_snapshot
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.driver.sysfs_files import read_text
from neurontools.model import Severity, Snapshot, health
from neurontools.model.health import finding_location
from neurontools.rpc import socket_path
from neurontools.runtime.launch.import_hook import SUPPORTED_TORCH
from neurontools.util.errors import UserError
from neurontools.util.formats import json_text
from neurontools.util.process_text import shown_value
from neurontools.util.terminal import escape_controls
from neurontools.util.units import bytes_text, devices_text, duration_text, ranges_text
from neurontools.util.version import __version__


class CheckLevel(StrEnum):
    OK = "ok"
    NOTE = "note"  # may be intended
    PROBLEM = "problem"  # something does not work


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. `action` is the next step for the user; "" if none is needed."""

    level: CheckLevel
    result: str
    action: str = ""
    area: str = ""  # name of the group of checks, as in _EXAMINATIONS


_ok = partial(CheckResult, CheckLevel.OK)
_note = partial(CheckResult, CheckLevel.NOTE)
_problem = partial(CheckResult, CheckLevel.PROBLEM)


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """Inputs of the checks: environment variables, file trees and an optional socket."""

    environment: Mapping[str, str]
    roots: Roots
    socket: str | None = None  # socket to check; None: all default sockets


def directory_size_bytes(path: str, most_entries: int = 20_000) -> int:
    """Returns the total size of the readable files below a directory. Does not follow links."""
    total = entries = 0
    for directory, _, names in os.walk(path):
        for name in names:
            entries += 1
            if entries > most_entries:
                return total
            try:
                total += os.lstat(f"{directory}/{name}").st_size
            except OSError:
                continue
    return total


COMMANDS = ("neurond", "neuron-ls", "neuron-top", "neuron-monitor", "neuron-healthcheck", "neuron-run")
AWS_PACKAGES = ("torch-neuronx", "torch-xla", "libneuronxla", "neuronx-cc", "neuronx-distributed", "jax-neuronx")
_RUNTIME = Path("/opt/aws/neuron/lib")
_MOST_HEAD_BYTES = 4096


def examine_installation(place: DoctorContext) -> Iterator[CheckResult]:
    where = Path(neurontools.__file__).parent
    yield _ok(
        f"neurontools {__version__} in {where} ({bytes_text(directory_size_bytes(str(where)))}), "
        f"Python {platform.python_version()} ({sys.executable})"
    )
    yield from _examine_dependencies()
    yield from _examine_optional_packages()
    yield from _examine_commands(place)
    libraries = sorted(path.name for path in _RUNTIME.glob("libnrt.so.*")) if _RUNTIME.is_dir() else []
    if libraries:
        yield _ok(f"Neuron runtime: {', '.join(libraries[-3:])} in {_RUNTIME}")


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def required_packages() -> list[str]:
    """Returns the required packages from the metadata of neurontools; empty in a bare checkout."""
    try:
        requirements = metadata.requires("neurontools") or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[ <>=!~;\[(]", text, maxsplit=1)[0] for text in requirements if "extra ==" not in text]


def _examine_dependencies() -> Iterator[CheckResult]:
    found = {name: installed_version(name) for name in required_packages()}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield _problem(f"not installed: {', '.join(missing)}", "pip install --upgrade neurontools")
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
    if there:
        yield _ok(there)


def _examine_optional_packages() -> Iterator[CheckResult]:
    torch = installed_version("torch")
    if torch is None:
        yield _note("torch is not installed; neuron-run needs it", "pip install 'neurontools[runtime]'")
    elif torch.split(".")[:2] != SUPPORTED_TORCH.split("."):
        yield _note(
            f"torch {torch} is installed, but neuron-run needs {SUPPORTED_TORCH}",
            f"pip install 'torch=={SUPPORTED_TORCH}.*' where neuron-run is used",
        )
    else:
        yield _ok(f"torch {torch}")
    of_aws = [f"{name} {version}" for name in AWS_PACKAGES if (version := installed_version(name)) is not None]
    if of_aws:
        yield _ok(f"AWS packages: {', '.join(of_aws)}")


def _examine_commands(place: DoctorContext) -> Iterator[CheckResult]:
    """Checks that PATH contains our commands, not other programs of the same names."""
    missing, others = [], []
    for name in COMMANDS:
        path = shutil.which(name, path=place.environment.get("PATH", ""))
        if path is None:
            missing.append(name)
        elif not _is_ours(path):
            others.append(path)
    if missing:
        own = Path(sys.executable).parent
        yield _note(f"not in PATH: {', '.join(missing)}", f'PATH="{own}:$PATH", or run them by path')
    if others:
        yield _note(
            f"other programs of these names come first in PATH: {', '.join(others)}",
            "put the directory of neurontools' commands first in PATH, or run them by path",
        )


def _is_ours(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            head = file.read(_MOST_HEAD_BYTES)
    except OSError:
        return True  # assumes that an unreadable file belongs to neurontools
    return b"neurontools" in head or b"neurond" in head


_MOST_PCI_DEVICES = 4096


def examine_driver(place: DoctorContext) -> Iterator[CheckResult]:
    roots = place.roots
    on_bus = _count_pci_devices(roots)
    version = driver_version(roots)
    if not roots.has_devices:
        yield from _examine_missing_devices(on_bus, version)
        return
    directories = list_device_directories(roots)
    yield _ok(f"Neuron driver {version or 'of an unknown version'}, devices: {len(directories)}")
    if on_bus > len(directories):
        yield _problem(
            f"{on_bus} devices on the PCI bus, {len(directories)} shown by the driver",
            "see dmesg for its failure; stop and start the instance to get another host",
        )
    yield from _examine_device_files(roots, [directory.index for directory in directories])
    try:
        snapshot = read_host_snapshot(roots)
    except UserError as error:
        yield _problem(str(error))
        return
    for warning in snapshot.warnings if snapshot is not None else ():
        yield _note(warning)


def driver_version(roots: Roots) -> str | None:
    return read_text(roots.driver_version, 64) or None


def _examine_missing_devices(on_bus: int, version: str | None) -> Iterator[CheckResult]:
    if version is not None:
        yield _problem(
            f"Neuron driver {version} is loaded but shows no device",
            "see dmesg for its failure; in a container: give it /dev/neuron* and the host's /sys",
        )
    elif on_bus:
        yield _problem(
            f"{on_bus} Neuron devices on the PCI bus, but no driver is loaded",
            "modprobe neuron; is the package aws-neuronx-dkms installed for this kernel?",
        )
    else:
        yield _ok("no Neuron device on this host; simulate one with neurond --simulate trn1.32xlarge")


def _count_pci_devices(roots: Roots) -> int:
    families = [catalog.load_family(name) for name in catalog.family_names()]
    neuron_ids = {
        (f"0x{family.pci.vendor_id}", f"0x{device}") for family in families for device in family.pci.device_ids
    }
    try:
        names = sorted(os.listdir(roots.pci_devices))[:_MOST_PCI_DEVICES]  # noqa: PTH208
    except OSError:
        return 0
    return sum(
        (read_text(f"{roots.pci_devices}/{name}/vendor", 16), read_text(f"{roots.pci_devices}/{name}/device", 16))
        in neuron_ids
        for name in names
    )


def _examine_device_files(roots: Roots, indices: list[int]) -> Iterator[CheckResult]:
    """Checks that the device files exist and that this user may open them, without opening them."""
    paths = {index: f"{roots.dev}/neuron{index}" for index in indices}
    missing = [index for index, path in paths.items() if not Path(path).exists()]
    closed = [index for index, path in paths.items() if index not in missing and not os.access(path, os.R_OK | os.W_OK)]
    if missing:
        yield _problem(
            f"no device files of devices {ranges_text(missing)} in {roots.dev}",
            "run udevadm trigger as root; pass the files to a container",
        )
    if closed:
        yield _problem(
            f"this user may not open the device files of devices {ranges_text(closed)} in {roots.dev}",
            "set their group and mode with a udev rule, and add the user to that group",
        )


_STATE = "/var/lib/neurond"
_CONFIGURATION = "/etc/neurontools/neurond.toml"
_MOST_FINDINGS = 8
_LATE_INTERVALS, _LATE_SECONDS = 5, 10.0


def examine_daemons(place: DoctorContext) -> Iterator[CheckResult]:
    """Checks each existing daemon socket, and whether its daemon answers."""
    answering = 0
    for path in _socket_candidates(place):
        if not os.path.lexists(path):
            continue
        checks = [*_examine_socket(path)]
        answering += any(check.level is CheckLevel.OK for check in checks)
        yield from checks
    if not answering:
        candidates = ", ".join(_socket_candidates(place))
        if place.roots.has_devices or place.socket is not None:
            yield _problem(
                f"no daemon answers (tried {candidates})",
                "run systemctl enable --now neurond, or start neurond yourself",
            )
        else:
            yield _note(f"no daemon is running (tried {candidates})", "neurond --simulate trn1.32xlarge &")
    for path, content in ((_STATE, "state"), (_CONFIGURATION, "configuration")):
        if Path(path).exists():
            size = f" ({bytes_text(directory_size_bytes(path))})" if Path(path).is_dir() else ""
            yield _ok(f"{content} in {path}{size}")


def first_snapshot(place: DoctorContext) -> Snapshot | None:
    """Returns the snapshot of the first daemon that answers; None if no daemon answers."""
    for path in _socket_candidates(place):
        if os.path.lexists(path):
            try:
                with Client(path) as client:
                    return client.snapshot()
            except (UserError, ValueError):
                continue
    return None


def _socket_candidates(place: DoctorContext) -> tuple[str, ...]:
    named = socket_path.configured_socket(place.socket, place.environment)
    return (named,) if named is not None else socket_path.candidate_sockets(place.environment)


def _examine_socket(path: str) -> Iterator[CheckResult]:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        yield _problem(f"{path}: {error.strerror}", "start neurond")
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield _problem(f"{path} is not a socket", "remove it, and start neurond")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield _problem(
            f"this user may not use {path} (mode {stat.S_IMODE(status.st_mode):04o})",
            "start neurond with --group GROUP, add the user to that group, and log in again",
        )
        return
    if not Path(socket_path.attach_socket(path)).exists():
        yield _problem(f"there is no attach socket next to {path}", "restart neurond")
    try:
        with Client(path) as client:
            latest = client.snapshot()
    except (UserError, ValueError) as error:
        yield _problem(f"{path}: {error}")
        return
    yield from _examine_snapshot(path, latest)


def _examine_snapshot(path: str, latest: Snapshot) -> Iterator[CheckResult]:
    cost = "" if latest.daemon_resident_bytes is None else f", {bytes_text(latest.daemon_resident_bytes)}"
    if latest.daemon_vcpu_ratio is not None:
        cost += f", {100 * latest.daemon_vcpu_ratio:.1f} % of a vCPU"
    instance = latest.instance
    missing = latest.missing_device_indices
    missing_text = f" and {devices_text(missing)} missing" if missing else ""
    yield _ok(
        f"neurond {latest.daemon_version or 'of an unknown version'} (PID {latest.daemon_pid}{cost}) at {path}: "
        f"{instance.instance_type}, {latest.source.value}, devices: {len(latest.devices)}{missing_text}, "
        f"processes: {len(latest.processes)}, a snapshot every {latest.interval_seconds:g} s"
    )
    if latest.daemon_version != __version__:
        yield _note(
            f"neurond is {latest.daemon_version or 'of an unknown version'}, this is neurontools {__version__}",
            "restart neurond after an update, or update it",
        )
    age_seconds = time.time() - latest.taken_at_unix_seconds
    if age_seconds > max(_LATE_SECONDS, _LATE_INTERVALS * latest.interval_seconds):
        yield _problem(f"its latest snapshot is {duration_text(age_seconds)} old", "see its log; restart it")
    for warning in latest.warnings:
        yield _note(warning)
    if latest.health is None:
        return
    verdicts = health.verdicts(latest)
    if any(verdict.is_healthy is None for verdict in verdicts):
        yield _note(health.summary(verdicts, latest), "see neurond(8), REAL DEVICES")
    warnings = [finding for finding in latest.health.findings if finding.severity > Severity.NOTICE]
    for finding in warnings[:_MOST_FINDINGS]:
        level = CheckLevel.PROBLEM if finding.severity >= Severity.CRITICAL else CheckLevel.NOTE
        found = f"{health.finding_name(finding)}: {finding_location(finding)}{health.sentence(finding, latest)}"
        yield CheckResult(level, found, finding.action)
    if len(warnings) > _MOST_FINDINGS:
        yield _note(f"and {len(warnings) - _MOST_FINDINGS} more findings", "neuron-ls --health")


_PREFIXES = ("NEURON", "XLA_", "PJRT_", "TORCH_NEURON")
_MOST_VARIABLES = 100
KNOWN_VARIABLES = (
    VISIBLE_CORES,
    NUM_CORES,
    LNC,
    LNC_ALIAS,
    PROCESS_TAG,
    "NEURON_CC_FLAGS",
    "NEURON_COMPILE_CACHE_URL",
    "NEURON_FAIL_ON_NAN",
    "NEURON_RT_EXEC_TIMEOUT",
    "NEURON_RT_LOG_LEVEL",
    "NEURON_RT_LOG_LOCATION",
    "NEURON_RT_ROOT_COMM_ID",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_RT_INSPECT_ENABLE",
    "NEURONTOOLS_SOCKET",
    "NEURONTOOLS_SIMULATE",
)


def examine_host_environment(place: DoctorContext) -> Iterator[CheckResult]:
    """Checks the kernel, the container and the kernel log."""
    container = " in a container" if is_container(place) else ""
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield _ok(f"{kernel}{container}, user {'root' if os.geteuid() == 0 else os.geteuid()}")
    kernel_log = f"{place.roots.dev}/kmsg"
    if os.access(kernel_log, os.R_OK):
        yield _ok(f"{kernel_log} is readable: neurond sees device errors in the kernel log")
    elif place.roots.has_devices:
        yield _note(
            f"this user can't read {kernel_log}; if neurond can't either, it misses NEURON_HW_ERR",
            "run neurond with the shipped systemd unit, or give it CAP_SYSLOG and access to the file",
        )


def is_container(place: DoctorContext) -> bool:
    """Returns whether marker files or the variable `container` show that this process runs in a container."""
    marks = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return any(Path(mark).exists() for mark in marks) or "container" in place.environment


def relevant_variables(place: DoctorContext) -> list[tuple[str, str]]:
    """Returns the names and values of the relevant environment variables, sorted, with secrets hidden."""
    found = sorted(name for name in place.environment if name.startswith(_PREFIXES))[:_MOST_VARIABLES]
    return [(name, shown_value(name, place.environment[name])) for name in found]


def examine_variables(place: DoctorContext) -> Iterator[CheckResult]:
    for name, value in relevant_variables(place):
        near = get_close_matches(name, KNOWN_VARIABLES, n=1, cutoff=0.9)
        if name not in KNOWN_VARIABLES and near:
            yield _problem(f"{name} is set, but no program reads it", f"did you mean {near[0]}?")
        else:
            yield _ok(f"{name}={value[:200]}")
    try:
        logical_neuroncore_config(place.environment)
        CoreRequest.from_environment(place.environment)
    except InvalidCoreRequest as error:
        yield _problem(str(error))


_EXAMINATIONS = {
    "installed": examine_installation,
    "driver": examine_driver,
    "daemon": examine_daemons,
    "host": examine_host_environment,
    "variables": examine_variables,
}
_WIDEST_AREA, _WIDEST_LEVEL = 10, 8


def run_examinations(place: DoctorContext) -> list[CheckResult]:
    """Runs all checks. Reports an exception in a check as a problem and continues with the next check."""
    found: list[CheckResult] = []
    for area, examine in _EXAMINATIONS.items():
        try:
            for check in examine(place):
                found.append(replace(check, area=area))  # noqa: PERF401 - keeps the results before an exception
        except Exception as error:
            failure = f"the check failed: {type(error).__name__}: {error}"
            found.append(_problem(failure, "please report this", area))
    return found


def report_text(checks: Sequence[CheckResult]) -> str:
    """Returns the report as text: one line for each result, the actions for the user, and a summary."""
    lines = [f"neuron-doctor {__version__}"]
    for check in checks:
        lines.append(f"{check.area:<{_WIDEST_AREA}}{check.level:<{_WIDEST_LEVEL}}{escape_controls(check.result)}")
        if check.action:
            lines.append(f"{'':<{_WIDEST_AREA + _WIDEST_LEVEL}}do: {escape_controls(check.action)}")
    return "\n".join((*lines, summary_text(checks), ""))


def report_json(checks: Sequence[CheckResult]) -> str:
    documents = [
        {"area": check.area, "level": str(check.level), "found": check.result, "action": check.action or None}
        for check in checks
    ]
    return json_text({"version": __version__, "summary": summary_text(checks), "checks": documents}, indent=2) + "\n"


def summary_text(checks: Sequence[CheckResult]) -> str:
    problems = sum(check.level is CheckLevel.PROBLEM for check in checks)
    notes = sum(check.level is CheckLevel.NOTE for check in checks)
    if not problems and not notes:
        return "no problems"
    parts = [f"{problems} problem{'s' if problems > 1 else ''}"] if problems else []
    parts += [f"{notes} note{'s' if notes > 1 else ''}"] if notes else []
    return ", ".join(parts)
