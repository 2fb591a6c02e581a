"""Checks of neuron-doctor: the installation and the daemons, beside those that neuron-diag makes too."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import neurontools
from neurontools.client.daemon_client import Client
from neurontools.diagnose.host_checks import (
    CheckContext,
    CheckLevel,
    CheckResult,
    examine_driver,
    examine_driver_files,
    examine_host_environment,
    examine_snapshot,
    examine_variables,
    note,
    ok,
    problem,
)
from neurontools.model import Severity, Snapshot, health
from neurontools.model.health import finding_location
from neurontools.rpc import socket_path
from neurontools.runtime.launch.torch_version import SUPPORTED_TORCH
from neurontools.util.errors import UserError
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import bytes_text, devices_text
from neurontools.util.version import __version__


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


def examine_installation(place: CheckContext) -> Iterator[CheckResult]:
    where = Path(neurontools.__file__).parent
    yield ok(
        f"neurontools {__version__} in {where} ({bytes_text(directory_size_bytes(str(where)))}), "
        f"Python {platform.python_version()} ({sys.executable})"
    )
    yield from _examine_dependencies()
    yield from _examine_optional_packages()
    yield from _examine_commands(place)
    libraries = sorted(path.name for path in _RUNTIME.glob("libnrt.so.*")) if _RUNTIME.is_dir() else []
    if libraries:
        yield ok(f"Neuron runtime: {', '.join(libraries[-3:])} in {_RUNTIME}")


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
        yield problem(f"not installed: {', '.join(missing)}", "pip install --upgrade neurontools")
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
    if there:
        yield ok(there)


def _examine_optional_packages() -> Iterator[CheckResult]:
    torch = installed_version("torch")
    if torch is None:
        yield note("torch is not installed; neuron-run needs it", "pip install 'neurontools[runtime]'")
    elif torch.split(".")[:2] != SUPPORTED_TORCH.split("."):
        yield note(
            f"torch {torch} is installed, but neuron-run needs {SUPPORTED_TORCH}",
            f"pip install 'torch=={SUPPORTED_TORCH}.*' where neuron-run is used",
        )
    else:
        yield ok(f"torch {torch}")
    of_aws = [f"{name} {version}" for name in AWS_PACKAGES if (version := installed_version(name)) is not None]
    if of_aws:
        yield ok(f"AWS packages: {', '.join(of_aws)}")


def _examine_commands(place: CheckContext) -> Iterator[CheckResult]:
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
        yield note(f"not in PATH: {', '.join(missing)}", f'PATH="{own}:$PATH", or run them by path')
    if others:
        yield note(
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


_STATE = "/var/lib/neurond"
_CONFIGURATION = "/etc/neurontools/neurond.toml"
_MOST_FINDINGS = 8


def examine_daemons(place: CheckContext) -> Iterator[CheckResult]:
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
            yield problem(
                f"no daemon answers (tried {candidates})",
                "run systemctl enable --now neurond, or start neurond yourself",
            )
        else:
            yield note(f"no daemon is running (tried {candidates})", "neurond --simulate trn1.32xlarge &")
    for path, content in ((_STATE, "state"), (_CONFIGURATION, "configuration")):
        if Path(path).exists():
            size = f" ({bytes_text(directory_size_bytes(path))})" if Path(path).is_dir() else ""
            yield ok(f"{content} in {path}{size}")


def first_snapshot(place: CheckContext) -> Snapshot | None:
    """Returns the snapshot of the first daemon that answers; None if no daemon answers."""
    for path in _socket_candidates(place):
        if os.path.lexists(path):
            try:
                with Client(path) as client:
                    return client.snapshot()
            except (UserError, ValueError):
                continue
    return None


def _socket_candidates(place: CheckContext) -> tuple[str, ...]:
    named = socket_path.configured_socket(place.socket, place.environment)
    return (named,) if named is not None else socket_path.candidate_sockets(place.environment)


def _examine_socket(path: str) -> Iterator[CheckResult]:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        yield problem(f"{path}: {error.strerror}", "start neurond")
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield problem(f"{path} is not a socket", "remove it, and start neurond")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield problem(
            f"this user may not use {path} (mode {stat.S_IMODE(status.st_mode):04o})",
            "start neurond with --group GROUP, add the user to that group, and log in again",
        )
        return
    if not Path(socket_path.attach_socket(path)).exists():
        yield problem(f"there is no attach socket next to {path}", "restart neurond")
    try:
        with Client(path) as client:
            latest = client.snapshot()
    except (UserError, ValueError) as error:
        yield problem(f"{path}: {error}")
        return
    yield from _examine_snapshot(path, latest)


def _examine_snapshot(path: str, latest: Snapshot) -> Iterator[CheckResult]:
    cost = "" if latest.daemon_resident_bytes is None else f", {bytes_text(latest.daemon_resident_bytes)}"
    if latest.daemon_vcpu_ratio is not None:
        cost += f", {100 * latest.daemon_vcpu_ratio:.1f} % of a vCPU"
    instance = latest.instance
    missing = latest.missing_device_indices
    missing_text = f" and {devices_text(missing)} missing" if missing else ""
    yield ok(
        f"neurond {latest.daemon_version or 'of an unknown version'} (PID {latest.daemon_pid}{cost}) at {path}: "
        f"{instance.instance_type}, {latest.source.value}, devices: {len(latest.devices)}{missing_text}, "
        f"processes: {len(latest.processes)}, a snapshot every {latest.interval_seconds:g} s"
    )
    age_seconds = time.time() - latest.taken_at_unix_seconds
    checks = examine_snapshot(latest.daemon_version or "", age_seconds, latest.interval_seconds, latest.warnings)
    yield from (check for check in checks if check.level is not CheckLevel.OK)
    if latest.health is None:
        return
    verdicts = health.verdicts(latest)
    if any(verdict.is_healthy is None for verdict in verdicts):
        yield note(health.summary(verdicts, latest), "see neurond(8), REAL DEVICES")
    warnings = [finding for finding in latest.health.findings if finding.severity > Severity.NOTICE]
    for finding in warnings[:_MOST_FINDINGS]:
        level = CheckLevel.PROBLEM if finding.severity >= Severity.CRITICAL else CheckLevel.NOTE
        found = f"{health.finding_name(finding)}: {finding_location(finding)}{health.sentence(finding, latest)}"
        yield CheckResult(level, found, finding.action)
    if len(warnings) > _MOST_FINDINGS:
        yield note(f"and {len(warnings) - _MOST_FINDINGS} more findings", "neuron-ls --health")


def _examine_driver(place: CheckContext) -> Iterator[CheckResult]:
    yield from examine_driver(place)
    yield from examine_driver_files(place)


_EXAMINATIONS = {
    "installed": examine_installation,
    "driver": _examine_driver,
    "daemon": examine_daemons,
    "host": examine_host_environment,
    "variables": examine_variables,
}
_WIDEST_AREA, _WIDEST_LEVEL = 10, 8


def run_examinations(place: CheckContext) -> list[CheckResult]:
    """Runs all checks. Reports an exception in a check as a problem and continues with the next check."""
    found: list[CheckResult] = []
    for area, examine in _EXAMINATIONS.items():
        try:
            for check in examine(place):
                found.append(replace(check, area=area))  # noqa: PERF401 - keeps the results before an exception
        except Exception as error:
            failure = f"the check failed: {type(error).__name__}: {error}"
            found.append(problem(failure, "please report this", area))
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
