"""Finds events between two snapshots: changes of processes, errors, ECC errors, models, findings and warnings.

Events that need a rule (stalled, idle, nearly full) repeat the text of the daemon's findings. Snapshots of older
daemons have no findings, and so no such events.

The module compares protobuf messages, because converting each to a `Snapshot` would make long recordings slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from neurontools.model import Finding, Health, Severity
from neurontools.model.finding import FindingKind
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.util.terminal import escape_controls
from neurontools.util.units import counted, duration_text, ranges_text, strip_durations

CLOCK_STEP_SECONDS, CLOCK_STEP_RATIO = 2.0, 0.001
"""The wall clock was set if, between two snapshots, it moved this much more or less than the monotonic clock: by at
least these seconds, and by at least this share of the elapsed time.
"""

_ERROR_KINDS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
_ECC_KINDS = (
    ("mem_corrected_total", "corrected HBM", False),
    ("mem_uncorrected_total", "uncorrected HBM", True),
    ("sram_corrected_total", "corrected SRAM", False),
    ("sram_uncorrected_total", "uncorrected SRAM", True),
)
_LONGEST_TEXT = 200
_BURST_SECONDS = 60.0  # alike events that follow each other within this time are one burst
_MOST_BURSTS = 100  # bursts kept for each kind of event and device
_MOST_MARKS = 1000  # more than a plot has cells
_FACT_KINDS = frozenset(
    (
        FindingKind.DEVICE_MISSING,
        FindingKind.ECC_CORRECTED,
        FindingKind.ECC_UNCORRECTED,
        FindingKind.HARDWARE_ERRORS,
        FindingKind.NUMERICAL_ERRORS,
        FindingKind.FAILED_EXECUTIONS,
        FindingKind.STALE_REPORT,
    )
)
"""Kinds of findings that repeat another event, such as a missing device or a counted error."""

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
"""Maps the kind of a finding to the kind of its event. A kind without an entry becomes "finding"."""


class EventSeverity(StrEnum):
    """How serious an event is, with the words that users see."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


_SEVERITIES = {
    Severity.NOTICE: EventSeverity.INFO,
    Severity.WARNING: EventSeverity.WARNING,
    Severity.CRITICAL: EventSeverity.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One event on a host, such as an ended process, with a text for users."""

    at_unix_seconds: float
    # Kind of the event: attached, ended, error, ecc, device, model, silent, warning, restart, clock or finding.
    # Some kinds of findings have a word of their own instead of "finding", such as "stuck" or "idle".
    kind: str
    severity: EventSeverity
    text: str
    pid: int | None = None
    device_index: int | None = None
    at_seconds: float = 0.0  # monotonic time of the event's snapshot in the timeline; of a burst, its last one
    core_index: int | None = None  # logical core
    # For counted errors, `text` is `subject`, the number `quantity` and `noun`. For a burst without a noun, `subject`
    # is the text of a single event.
    subject: str = ""
    noun: str = ""
    quantity: int = 0
    times: int = 1  # number of events that this event stands for; more than 1 for a burst
    began_at_seconds: float | None = None  # time of the first event of a burst; None for a single event
    marks_at_seconds: tuple[float, ...] = ()  # times of the latest events of a burst, for plots; empty: `at_seconds`

    @property
    def alike_key(self) -> tuple[object, ...]:
        """A key that is the same for the events of one burst."""
        return (self.severity, self.pid, self.core_index, self.subject or self.text, self.noun)


class EventLog:
    """Folds events into bursts, which are the lines of all event lists. Not thread-safe.

    Alike events of one kind on one device or process within a minute of each other become one event with their number
    and first time. Each kind of event on each device has its own limit, so a frequent kind never displaces a rare one.
    """

    def __init__(self) -> None:
        self._bursts: dict[tuple[str, int | None], list[HostEvent]] = {}

    def add(self, event: HostEvent) -> None:
        """Adds an event that is not older than the others."""
        own = self._bursts.setdefault((event.kind, event.device_index), [])
        for position in range(len(own) - 1, -1, -1):
            burst = own[position]
            if burst.at_seconds < event.at_seconds - _BURST_SECONDS:
                break
            if burst.alike_key == event.alike_key:
                event = _folded(own.pop(position), event)
                break
        own.append(event)
        del own[:-_MOST_BURSTS]

    def events(self) -> tuple[HostEvent, ...]:
        """Returns the bursts and single events, in the order of their last times."""
        return tuple(sorted((each for own in self._bursts.values() for each in own), key=lambda each: each.at_seconds))


def _folded(burst: HostEvent, event: HostEvent) -> HostEvent:
    """Returns a burst with one more event."""
    quantity, times = burst.quantity + event.quantity, burst.times + event.times
    subject = event.subject or event.text
    text = f"{subject}: {counted(quantity, event.noun)}" if event.noun else subject
    # The elapsed time is monotonic, because the wall clock may have been set meanwhile.
    began_at_seconds = burst.at_seconds if burst.began_at_seconds is None else burst.began_at_seconds
    elapsed = duration_text(float(round(event.at_seconds - began_at_seconds)))
    text = f"{text}, {times} times in {elapsed}"
    marks = (*(burst.marks_at_seconds or (burst.at_seconds,)), event.at_seconds)[-_MOST_MARKS:]
    return replace(
        event,
        text=text,
        subject=subject,
        quantity=quantity,
        times=times,
        began_at_seconds=began_at_seconds,
        marks_at_seconds=marks,
    )


def _counted_event(
    at: float,
    kind: str,
    severity: EventSeverity,
    subject: str,
    quantity: int,
    noun: str,
    *,
    pid: int | None = None,
    device_index: int | None = None,
) -> HostEvent:
    text = f"{subject}: {counted(quantity, noun)}"
    return HostEvent(at, kind, severity, text, pid, device_index, subject=subject, noun=noun, quantity=quantity)


def events_between(before: neuron_pb2.Snapshot | None, after: neuron_pb2.Snapshot) -> tuple[HostEvent, ...]:
    """Returns the events between two snapshots; empty if `before` is None."""
    if before is None:
        return ()
    return tuple(_events(before, after))


def _events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot) -> Iterator[HostEvent]:
    at = after.taken_at_unix_seconds
    if before.daemon_pid != after.daemon_pid:
        yield HostEvent(at, "restart", EventSeverity.WARNING, f"the daemon was restarted (PID {after.daemon_pid})")
    yield from _clock_events(before, after, at)
    yield from _process_events(before, after, at)
    yield from _device_events(before, after, at)
    yield from _finding_events(before, after, at)
    new = [] if after.warnings == before.warnings else after.warnings
    known = set(map(strip_durations, before.warnings)) if new else set()
    for warning in new:
        if strip_durations(warning) not in known:
            yield HostEvent(at, "warning", EventSeverity.WARNING, escape_controls(warning[:_LONGEST_TEXT]))


def _clock_events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[HostEvent]:
    passed_seconds = after.taken_at_seconds - before.taken_at_seconds
    moved_seconds = after.taken_at_unix_seconds - before.taken_at_unix_seconds - passed_seconds
    if passed_seconds >= 0 and abs(moved_seconds) >= max(CLOCK_STEP_SECONDS, CLOCK_STEP_RATIO * passed_seconds):
        direction = "forward" if moved_seconds > 0 else "back"
        text = f"the clock of the host was set {direction} by {duration_text(round(abs(moved_seconds)))}"
        yield HostEvent(at, "clock", EventSeverity.WARNING, text)


def _process_events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[HostEvent]:
    earlier = {process.pid: process for process in before.processes}
    later = {process.pid: process for process in after.processes}
    for pid, process in later.items():
        old = earlier.get(pid)
        if old is None:
            if not process.core_indices:
                continue
            text = f"{_name(process)} attached, holds {counted(len(process.neuroncore_indices), 'core')}"
            yield HostEvent(at, "attached", EventSeverity.INFO, text, pid)
            continue
        if not old.core_indices and process.core_indices:
            text = f"{_name(process)} took {counted(len(process.neuroncore_indices), 'core')}"
            yield HostEvent(at, "attached", EventSeverity.INFO, text, pid)
        for kind in _ERROR_KINDS if process.errors != old.errors else ():
            grown = getattr(process.errors, f"{kind}_total") - getattr(old.errors, f"{kind}_total")
            if grown > 0:
                severity = EventSeverity.CRITICAL if kind == "hardware" else EventSeverity.WARNING
                yield _counted_event(at, "error", severity, _name(process), grown, f"{kind} error", pid=pid)
        if len(process.models) != len(old.models):
            text = f"{_name(process)} has {counted(len(process.models), 'model')} loaded, had {len(old.models)}"
            yield HostEvent(at, "model", EventSeverity.INFO, text, pid)
        if old.reporting and not process.reporting and process.HasField("measured_at_seconds"):
            yield HostEvent(at, "silent", EventSeverity.WARNING, f"{_name(process)} has stopped reporting", pid)
    for pid, process in earlier.items():
        if pid not in later and process.core_indices:
            freed = len(process.neuroncore_indices)
            text = f"{_name(process)} ended, {counted(freed, 'core')} {'is' if freed == 1 else 'are'} free"
            yield HostEvent(at, "ended", EventSeverity.INFO, text, pid)


def _finding_events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[HostEvent]:
    """Yields an event for each new finding; yields nothing if either snapshot has no health report."""
    if not (before.HasField("health") and after.HasField("health")) or before.health == after.health:
        return
    identities_before = {finding.identity for finding in _findings(before)}
    for finding in _findings(after):
        if finding.identity not in identities_before and finding.kind not in _FACT_KINDS:
            indices = finding.device_indices
            place = f"ND {ranges_text(indices)}: " if indices and finding.pid is None else ""
            text = escape_controls(f"{place}{finding.reason}"[:_LONGEST_TEXT])
            severity = _SEVERITIES.get(finding.severity, EventSeverity.WARNING)
            kind = _WORDS.get(finding.kind, "finding")
            device_index = indices[0] if indices else None
            yield HostEvent(at, kind, severity, text, finding.pid, device_index, core_index=finding.neuroncore_index)


def _findings(snapshot: neuron_pb2.Snapshot) -> tuple[Finding, ...]:
    return from_message(Health, snapshot.health).findings


def _device_events(before: neuron_pb2.Snapshot, after: neuron_pb2.Snapshot, at: float) -> Iterator[HostEvent]:
    if len(before.devices) != len(after.devices):
        earlier, later = ({device.index for device in each.devices} for each in (before, after))
        for index in sorted(earlier - later):
            yield HostEvent(at, "device", EventSeverity.CRITICAL, f"ND {index} is gone", device_index=index)
        for index in sorted(later - earlier):
            yield HostEvent(at, "device", EventSeverity.WARNING, f"ND {index} is there again", device_index=index)
    ecc_before = {device.index: device.ecc for device in before.devices}
    for device in after.devices:
        old = ecc_before.get(device.index)
        if old is None:
            continue
        for field, name, is_critical in _ECC_KINDS:
            grown = getattr(device.ecc, field) - getattr(old, field)
            if grown > 0 and old.HasField(field):  # type: ignore[arg-type]
                severity = EventSeverity.CRITICAL if is_critical else EventSeverity.WARNING
                subject, noun = f"ND {device.index}", f"{name} ECC error"
                yield _counted_event(at, "ecc", severity, subject, grown, noun, device_index=device.index)


def _name(process: neuron_pb2.Process) -> str:
    tag = escape_controls(process.tag[:60])
    return f"PID {process.pid}" if tag == str(process.pid) else f"{tag} (PID {process.pid})"
