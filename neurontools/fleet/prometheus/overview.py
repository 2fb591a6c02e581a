"""From the answers of a Prometheus to hosts: pure. What it has no series of is unknown, and never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from neurontools.fleet.hosts import Place, Reach
from neurontools.fleet.prometheus import quantities
from neurontools.fleet.prometheus.queries import DOWN, FULL_RATIO, Overview
from neurontools.fleet.prometheus.server import Sample
from neurontools.fleet.states import HostState, Link
from neurontools.fleet.summarize import MOST_FINDINGS
from neurontools.fleet.summary import DeviceCell, HostSummary, SummaryFinding
from neurontools.model import Severity, SourceKind
from neurontools.util.terminal import excerpt
from neurontools.util.units import duration_text

_LATE_SECONDS, _LATE_MEDIANS = 120.0, 5.0
_SIMULATED_ID = "i-simulated"
_LONGEST_LABEL = 200


@dataclass(frozen=True, slots=True)
class Moment:
    """When the answers came, by the clocks of this host."""

    seconds: float  # time.monotonic()
    unix_seconds: float


Answers = Mapping[str, tuple[Sample, ...]]
"""The samples of each query of an overview; a query that failed is missing."""


def hosts(asked: Overview, answers: Answers, before: Mapping[str, HostState], now: Moment) -> tuple[HostState, ...]:
    """The hosts, by instance; those before are what was known of them, by name."""
    names = _names(answers["identity"])
    by_host = {name: _by_instance(samples) for name, samples in answers.items()}
    ages = sorted(sample.value for sample in answers["identity"] if math.isfinite(sample.value))
    late_seconds = max(_LATE_SECONDS, _LATE_MEDIANS * median(ages)) if ages else _LATE_SECONDS
    found: dict[str, HostState] = {}
    for sample in answers["identity"]:
        instance = sample.labels.get("instance", "")
        if not instance or not math.isfinite(sample.value):
            continue
        place = _place(instance, names[instance])
        age = max(0.0, sample.value)
        clocks = by_host.get("clocks", {}).get(instance)
        state = HostState(
            place,
            Link.LIVE,
            summary=_summary(asked, sample, by_host, instance, now.unix_seconds - age),
            received_at_seconds=now.seconds - age,
            clock_ahead_seconds=clocks[0].value if clocks else 0.0,
            told_steps_per_second=_of(by_host, "steps", instance),
        )
        if age > late_seconds:
            state = replace(state, link=Link.LOST, trouble=f"Prometheus has not read it for {duration_text(age)}")
        found[instance] = state
    for sample in answers.get("lost", ()):
        instance = sample.labels.get("instance", "")
        if instance and instance not in found:
            found[instance] = _lost(instance, sample, before, now)
    return tuple(found[instance] for instance in sorted(found))


def _names(samples: tuple[Sample, ...]) -> dict[str, str]:
    """What each instance is called: its label `node` where no other has it, else the address."""
    nodes: dict[str, list[str]] = {}
    for sample in samples:
        nodes.setdefault(sample.labels.get("node", ""), []).append(sample.labels.get("instance", ""))
    return {
        instance: label(node if node and len(same) == 1 else instance)
        for node, same in nodes.items()
        for instance in same
    }


def _place(instance: str, name: str) -> Place:
    """The host, reached by SSH for all that Prometheus doesn't tell."""
    address = name if name != label(instance) else instance.rpartition(":")[0].strip("[]") or instance
    return Place(name, Reach.SSH, label(address))


def _user(sample: Sample) -> str:
    """Who has processes, as a sample says: a name, or the number of one that has none; "" where it says nothing."""
    return label(sample.labels.get("user") or sample.labels.get("uid", ""))


def _by_instance(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.labels.get("instance", ""), []).append(sample)
    return found


def _lost(instance: str, sample: Sample, before: Mapping[str, HostState], now: Moment) -> HostState:
    """A host that is no longer read; what was known of it stays."""
    known = next((state for state in before.values() if state.summary and state.summary.host_name == instance), None)
    state = known or HostState(_place(instance, label(instance)))
    is_down = sample.labels.get("link") == DOWN
    trouble = "it does not answer Prometheus" if is_down else "Prometheus no longer asks it"
    is_seen = math.isfinite(sample.value) and sample.value >= 0
    received = now.seconds - sample.value if is_seen else state.received_at_seconds
    return replace(state, link=Link.LOST, trouble=trouble, received_at_seconds=received)


def _summary(
    asked: Overview, who: Sample, by_host: Mapping[str, dict[str, list[Sample]]], instance: str, taken_at: float
) -> HostSummary:
    def value(query: str) -> float:
        found = _of(by_host, query, instance)
        return math.nan if found is None else found

    counts, states = asked.counts.read(value("counts")), asked.states.read(value("states"))
    severity = states["severity"]
    is_judged = severity is not None and severity <= max(Severity)
    findings = _findings(by_host.get("findings", {}).get(instance, []), taken_at)
    users = {user for sample in by_host.get("counts", {}).get(instance, ()) if (user := _user(sample))}
    simulated = who.labels.get("instance_id") == _SIMULATED_ID
    return HostSummary(
        host_name=instance,
        instance_type=label(who.labels.get("instance_type", "")),
        instance_id=label(who.labels.get("instance_id", "")) or None,
        ultraserver_id=label(who.labels.get("ultraserver_id", "")) or None,
        ultraserver_node_index=None,
        source=SourceKind.SIMULATED if simulated else None,
        synthetic_load=None,
        driver_version=None,
        daemon_version=None,
        sequence=None,
        taken_at_unix_seconds=taken_at,
        taken_at_seconds=None,
        interval_seconds=None,
        is_judged=is_judged,
        critical_count=(states["critical"] or 0) if is_judged else 0,
        warning_count=(states["warning"] or 0) if is_judged else 0,
        notice_count=(states["notice"] or 0) if is_judged else 0,
        findings=findings if is_judged else (),
        devices=_devices(value("devices"), is_judged=is_judged),
        utilization_ratio=_ratio(states["utilization"]),
        flops_per_second=None,
        mfu_ratio=_ratio(states["mfu"]),
        device_memory_used_bytes=None,
        device_memory_bytes=None,
        process_count=None,
        jobs=(),
        further_users=tuple(sorted(users)),
        user_count=len(users) or None,
        **counts,
    )


def _of(by_host: Mapping[str, dict[str, list[Sample]]], query: str, instance: str) -> float | None:
    """What a query has found of a host; None for nothing, or what is no number."""
    samples = by_host.get(query, {}).get(instance)
    return samples[0].value if samples and math.isfinite(samples[0].value) else None


def _ratio(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / FULL_RATIO


def _findings(samples: list[Sample], taken_at: float) -> tuple[SummaryFinding, ...]:
    """The gravest first, those that last longest before others."""
    found: list[SummaryFinding] = []
    for sample in sorted(samples, key=lambda each: (each.labels.get("severity") != "critical", -each.value)):
        labels = sample.labels
        severity = Severity.__members__.get(labels.get("severity", "").upper())
        if severity is None or len(found) >= MOST_FINDINGS:
            continue
        found.append(
            SummaryFinding(
                kind=label(labels.get("finding", "")),
                severity=severity,
                reason=label(labels.get("reason", "")),
                began_at_unix_seconds=taken_at - sample.value if math.isfinite(sample.value) else 0.0,
                device_indices=_indices(labels.get("neuron_devices", "")),
                job=label(labels.get("job_name", "")) or None,
                synthetic=labels.get("synthetic") == "true",
            )
        )
    return tuple(found)


def _indices(text: str) -> tuple[int, ...]:
    """Of ranges such as 0-3,7; nothing of what is none."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()) and len(part) < 8:
            found += range(int(first), min(int(last) if dash else int(first), int(first) + 64) + 1)
    return tuple(found[:64])


def _devices(value: float, *, is_judged: bool) -> tuple[DeviceCell, ...]:
    """The devices of a host from the digits of its conditions; none where they are not known."""
    if not math.isfinite(value) or not 0 < value < 2**53:
        return ()
    rest, index = int(value), -1
    cells: list[DeviceCell] = []
    while rest:
        rest, condition = divmod(rest, quantities.CONDITIONS)
        severity = {quantities.WARNING: Severity.WARNING, quantities.CRITICAL: Severity.CRITICAL}.get(condition)
        well = Severity.OK if is_judged else None
        index += 1
        if not condition:
            continue
        cells.append(
            DeviceCell(
                index=index,
                is_present=True,
                severity=severity if severity is not None else well,
                utilization_ratio=0.0 if condition == quantities.IDLE else quantities.THIRDS.get(condition),
                held_neuroncore_count=0 if condition == quantities.FREE_DEVICE else None,
            )
        )
    return tuple(cells)


def label(text: str) -> str:
    """A text of a Prometheus as it may be shown."""
    return excerpt(text, _LONGEST_LABEL)
