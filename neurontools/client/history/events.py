"""What happened between two snapshots: processes that came and went, errors, ECC events, models, findings, warnings.

What is a matter of judgement (stuck, idle, nearly full) is told when the daemon's verdicts begin to say so, in their
words. Of snapshots without verdicts, those of an older daemon or recording, nothing of that kind is told.

Works on the messages of the API, which have the field names of the model, so that a whole recorded hour can be searched
without decoding it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from neurontools.model import Finding, Health
from neurontools.model import Severity as Gravity
from neurontools.model.finding import FindingKind
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.util.terminal import escape_controls
from neurontools.util.units import counted, duration_text, ranges_text

CLOCK_STEP_SECONDS, CLOCK_STEP_RATIO = 2.0, 0.001
"""A clock that went so far apart from the one that nobody sets, and so much for the time that passed, was set."""

_ERROR_KINDS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
_ECC_KINDS = (
    ("mem_corrected_total", "corrected HBM", False),
    ("mem_uncorrected_total", "uncorrected HBM", True),
    ("sram_corrected_total", "corrected SRAM", False),
    ("sram_uncorrected_total", "uncorrected SRAM", True),
)
_LONGEST_TEXT = 200
_TOLD_AS_FACTS = frozenset(
    (
        FindingKind.DEVICE_MISSING,
        FindingKind.ECC_CORRECTED,
        FindingKind.ECC_UNCORRECTED,
        FindingKind.HARDWARE_ERRORS,
        FindingKind.NUMERICAL_ERRORS,
        FindingKind.STALE_REPORT,
    )
)
"""Findings whose cause is an event itself: a device that is gone, an error that was counted."""

_WORDS: dict[str, str] = {
    FindingKind.STUCK: "stuck",
    FindingKind.IDLE: "idle",
    FindingKind.ORPHANED: "orphaned",
    FindingKind.MEMORY_NEARLY_FULL: "memory",
    FindingKind.ECC_REPAIRABLE: "ecc",
    FindingKind.LATENCY_RISEN: "latency",
    FindingKind.SLOW_RANK: "slow rank",
    FindingKind.WAITING: "waiting for other hosts",
    FindingKind.NEEDS_RESET: "reset",
    FindingKind.RESET_FAILED: "reset",
    FindingKind.CORE_ERRORS: "error",
    FindingKind.KERNEL_ERROR: "error",
    FindingKind.WAS_RESET: "reset",
    FindingKind.UNHEALTHY_COMPONENT: "device",
}
"""What a finding is called in the log; one that only a newer daemon knows is a "finding"."""
_Part = TypeVar("_Part", neuron_pb2.NeuronCore, neuron_pb2.Device)


class Severity(StrEnum):
    """How much an event matters."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


_SEVERITIES = {
    Gravity.NOTICE: Severity.INFO,
    Gravity.WARNING: Severity.WARNING,
    Gravity.CRITICAL: Severity.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, in words."""

    at_unix_seconds: float
    kind: (
        str  # attached, ended, error, ecc, device, model, silent, warning, restart, clock; of findings those in _WORDS
    )
    severity: Severity
    text: str
    pid: int | None = None
    device_index: int | None = None
    at_seconds: float = 0.0  # where its moment is in a timeline
    core_index: int | None = None  # the logical core it is about


def events_between(before: neuron_pb2.Snapshot | None, after: neuron_pb2.Snapshot) -> tuple[Event, ...]:
    """What happened from one snapshot to a later one; nothing for the first."""
    if before is None:
        return ()
    return tuple(_events(before, after))


def _events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot) -> Iterator[Event]:
    at = after.taken_at_unix_seconds
    if before.daemon_pid != after.daemon_pid:
        yield Event(at, "restart", Severity.WARNING, f"the daemon was restarted (PID {after.daemon_pid})")
    yield from _of_the_clock(before, after, at)
    yield from _of_processes(before, after, at)
    yield from _of_devices(before, after, at)
    yield from _of_findings(before, after, at)
    for warning in after.warnings:
        if warning not in before.warnings:
            yield Event(at, "warning", Severity.WARNING, escape_controls(warning[:_LONGEST_TEXT]))


def _of_the_clock(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[Event]:
    passed_seconds = after.taken_at_seconds - before.taken_at_seconds
    moved_seconds = after.taken_at_unix_seconds - before.taken_at_unix_seconds - passed_seconds
    if passed_seconds >= 0 and abs(moved_seconds) >= max(CLOCK_STEP_SECONDS, CLOCK_STEP_RATIO * passed_seconds):
        direction = "forward" if moved_seconds > 0 else "back"
        text = f"the clock of the host was set {direction} by {duration_text(round(abs(moved_seconds)))}"
        yield Event(at, "clock", Severity.WARNING, text)


def _of_processes(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[Event]:
    earlier = {process.pid: process for process in before.processes}
    later = {process.pid: process for process in after.processes}
    for pid, process in later.items():
        old = earlier.get(pid)
        if old is None:
            if not process.core_indices:
                continue
            text = f"{_name(process)} attached, holds {counted(len(process.neuroncore_indices), 'core')}"
            yield Event(at, "attached", Severity.INFO, text, pid)
            continue
        if not old.core_indices and process.core_indices:
            text = f"{_name(process)} took {counted(len(process.neuroncore_indices), 'core')}"
            yield Event(at, "attached", Severity.INFO, text, pid)
        for kind in _ERROR_KINDS if process.errors != old.errors else ():
            grown = getattr(process.errors, f"{kind}_total") - getattr(old.errors, f"{kind}_total")
            if grown > 0:
                severity = Severity.CRITICAL if kind == "hardware" else Severity.WARNING
                text = f"{_name(process)}: {counted(grown, f'{kind} error')}"
                yield Event(at, "error", severity, text, pid)
        if len(process.models) != len(old.models):
            text = f"{_name(process)} has {counted(len(process.models), 'model')} loaded, had {len(old.models)}"
            yield Event(at, "model", Severity.INFO, text, pid)
        if old.reporting and not process.reporting and process.HasField("measured_at_seconds"):
            yield Event(at, "silent", Severity.WARNING, f"{_name(process)} has stopped reporting", pid)
    for pid, process in earlier.items():
        if pid not in later and process.core_indices:
            freed = len(process.neuroncore_indices)
            text = f"{_name(process)} ended, {counted(freed, 'core')} {'is' if freed == 1 else 'are'} free"
            yield Event(at, "ended", Severity.INFO, text, pid)


def _of_findings(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[Event]:
    """Findings that are there now and were not; none where there is nothing to compare with."""
    if not (before.HasField("health") and after.HasField("health")) or before.health == after.health:
        return
    known = {finding.identity for finding in _findings(before)}
    for finding in _findings(after):
        if finding.identity not in known and finding.kind not in _TOLD_AS_FACTS:
            indices = finding.device_indices
            place = f"ND {ranges_text(indices)}: " if indices and finding.pid is None else ""
            text = escape_controls(f"{place}{finding.reason}"[:_LONGEST_TEXT])
            severity = _SEVERITIES.get(finding.severity, Severity.WARNING)
            kind = _WORDS.get(finding.kind, "finding")
            device_index = indices[0] if indices else None
            yield Event(at, kind, severity, text, finding.pid, device_index, core_index=finding.neuroncore_index)


def _findings(snapshot: neuron_pb2.Snapshot) -> tuple[Finding, ...]:
    return from_message(Health, snapshot.health).findings


def _of_devices(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[Event]:
    if len(before.devices) != len(after.devices):
        earlier, later = ({device.index for device in each.devices} for each in (before, after))
        for index in sorted(earlier - later):
            yield Event(at, "device", Severity.CRITICAL, f"ND {index} is gone", device_index=index)
        for index in sorted(later - earlier):
            yield Event(at, "device", Severity.WARNING, f"ND {index} is there again", device_index=index)
    yield from _of_ecc(before, after, at)


def _of_ecc(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[Event]:
    for old, new in _paired(before.devices, after.devices):
        for field, name, is_critical in _ECC_KINDS:
            grown = getattr(new.ecc, field) - getattr(old.ecc, field)
            if grown > 0 and old.ecc.HasField(field):  # type: ignore[arg-type]
                severity = Severity.CRITICAL if is_critical else Severity.WARNING
                text = f"ND {new.index}: {counted(grown, f'{name} ECC error')}"
                yield Event(at, "ecc", severity, text, device_index=new.index)


def _paired(before: Sequence[_Part], after: Sequence[_Part]) -> Iterator[tuple[_Part, _Part]]:
    """Cores or devices that are in both, by index: devices come and go."""
    if len(before) == len(after):
        yield from (pair for pair in zip(before, after, strict=True) if pair[0].index == pair[1].index)
        return
    earlier = {part.index: part for part in before}
    yield from ((earlier[part.index], part) for part in after if part.index in earlier)


def _name(process: neuron_pb2.Process) -> str:
    tag = escape_controls(process.tag[:60])
    return f"PID {process.pid}" if tag == str(process.pid) else f"{tag} (PID {process.pid})"
