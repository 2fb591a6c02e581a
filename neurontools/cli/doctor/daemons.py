"""The monitor daemons of this host: their sockets, who may use them, how they answer."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from neurontools.cli.doctor.check import Check, Level, Place, size_bytes
from neurontools.client.daemon_client import Client
from neurontools.model import Severity, Snapshot, health, problems
from neurontools.model.host_verdict import place as place_of
from neurontools.rpc import socket_path
from neurontools.util.errors import UserError
from neurontools.util.units import bytes_text, duration_text
from neurontools.util.version import __version__

AREA = "daemon"
_STATE = "/var/lib/neurond"
_CONFIGURATION = "/etc/neurontools/neurond.toml"
_MOST_FINDINGS = 8
_LATE_INTERVALS, _LATE_SECONDS = 5, 10.0


def examine(place: Place) -> Iterator[Check]:
    """Each socket that is there, and what its daemon says."""
    answering = 0
    for path in _sockets(place):
        if not os.path.lexists(path):
            continue
        checks = [*_of_socket(path)]
        answering += any(check.level is Level.OK for check in checks)
        yield from checks
    if not answering:
        looked = ", ".join(_sockets(place))
        if place.roots.has_devices or place.socket is not None:
            yield Check(
                AREA,
                Level.PROBLEM,
                f"no daemon answers (looked at {looked})",
                "systemctl enable --now neurond, or neurond by hand",
            )
        else:
            yield Check(AREA, Level.NOTE, f"no daemon runs (looked at {looked})", "neurond --simulate trn1.32xlarge &")
    for path, what in ((_STATE, "state"), (_CONFIGURATION, "configuration")):
        if Path(path).exists():
            size = f" ({bytes_text(size_bytes(path))})" if Path(path).is_dir() else ""
            yield Check(AREA, Level.OK, f"{what} in {path}{size}")


def snapshot(place: Place) -> Snapshot | None:
    """That of the first daemon that answers; None where none does."""
    for path in _sockets(place):
        if os.path.lexists(path):
            try:
                with Client(path) as client:
                    return client.snapshot()
            except (UserError, ValueError):
                continue
    return None


def _sockets(place: Place) -> tuple[str, ...]:
    named = socket_path.configured_socket(place.socket, place.environment)
    return (named,) if named is not None else socket_path.candidate_sockets(place.environment)


def _of_socket(path: str) -> Iterator[Check]:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        yield Check(AREA, Level.PROBLEM, f"{path}: {error.strerror}", "start neurond")
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield Check(AREA, Level.PROBLEM, f"{path} is no socket", "remove it, and start neurond")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield Check(
            AREA,
            Level.PROBLEM,
            f"this user may not use {path} (mode {stat.S_IMODE(status.st_mode):04o})",
            "neurond --group GROUP admits a group; add the user to it, and log in again",
        )
        return
    if not Path(socket_path.attach_socket(path)).exists():
        yield Check(AREA, Level.PROBLEM, f"{path} has no attach socket beside it", "restart neurond")
    try:
        with Client(path) as client:
            latest = client.snapshot()
    except (UserError, ValueError) as error:
        yield Check(AREA, Level.PROBLEM, f"{path}: {error}")
        return
    yield from _of_answer(path, latest)


def _of_answer(path: str, latest: Snapshot) -> Iterator[Check]:
    cost = "" if latest.daemon_resident_bytes is None else f", {bytes_text(latest.daemon_resident_bytes)}"
    if latest.daemon_vcpu_ratio is not None:
        cost += f", {100 * latest.daemon_vcpu_ratio:.1f} % of a vCPU"
    instance = latest.instance
    yield Check(
        AREA,
        Level.OK,
        f"neurond {latest.daemon_version or 'of an unknown version'} (PID {latest.daemon_pid}{cost}) at {path}: "
        f"{instance.instance_type}, {latest.source.value}, devices: {len(latest.devices)}, "
        f"processes: {len(latest.processes)}, a snapshot every {latest.interval_seconds:g} s",
    )
    if latest.daemon_version != __version__:
        yield Check(
            AREA,
            Level.NOTE,
            f"neurond is {latest.daemon_version or 'of an unknown version'}, this is neurontools {__version__}",
            "restart neurond after an update, or update it",
        )
    age_seconds = time.time() - latest.taken_at_unix_seconds
    if age_seconds > max(_LATE_SECONDS, _LATE_INTERVALS * latest.interval_seconds):
        yield Check(
            AREA, Level.PROBLEM, f"its latest snapshot is {duration_text(age_seconds)} old", "see its log; restart it"
        )
    for warning in latest.warnings:
        yield Check(AREA, Level.NOTE, warning)
    if latest.health is None:
        return
    grave = [finding for finding in latest.health.findings if finding.severity > Severity.NOTICE]
    for finding in grave[:_MOST_FINDINGS]:
        level = Level.PROBLEM if finding.severity >= Severity.CRITICAL else Level.NOTE
        found = f"{problems.name(finding)}: {place_of(finding)}{health.sentence(finding, latest)}"
        yield Check(AREA, level, found, finding.action)
    if len(grave) > _MOST_FINDINGS:
        yield Check(AREA, Level.NOTE, f"and {len(grave) - _MOST_FINDINGS} findings more", "neuron-ls --health")
