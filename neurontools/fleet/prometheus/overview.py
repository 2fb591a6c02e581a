"""Converts the answers of Prometheus into hosts and jobs. Values without a series are unknown, never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

from neurontools.fleet.device_conditions import decode_conditions
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.jobs import FleetJob, SlowFleetRank, StepSeconds
from neurontools.fleet.models import FleetModel
from neurontools.fleet.prometheus import queries
from neurontools.fleet.prometheus.queries import DOWN, FULL_RATIO, SAMPLE_OF, OverviewQueries
from neurontools.fleet.prometheus.server import PrometheusSample
from neurontools.fleet.states import HostLink, HostState
from neurontools.fleet.summary import MOST_FINDINGS, HostSummary, SummaryFinding
from neurontools.model import Severity, SourceKind
from neurontools.model.jobs import JobState
from neurontools.util.terminal import excerpt
from neurontools.util.units import duration_text

# A host is lost if the time since Prometheus read it exceeds both _LATE_SECONDS and _LATE_MEDIANS times the median.
_LATE_SECONDS, _LATE_MEDIANS = 120.0, 5.0
_STALE_SECONDS = 60.0  # age of a snapshot when Prometheus read it; the limit of the alert NeuronSnapshotStale
_SIMULATED_ID = "i-simulated"
_LONGEST_LABEL = 200


@dataclass(frozen=True, slots=True)
class QueryTime:
    """The time at which the answers of Prometheus arrived, by the monotonic clock and by the wall clock."""

    seconds: float  # time.monotonic()
    unix_seconds: float


Answers = Mapping[str, tuple[PrometheusSample, ...]]
"""The samples of each query, by the name of the query. Failed queries are missing."""


def read_host_states(
    queries: OverviewQueries, answers: Answers, before: Mapping[str, HostState], now: QueryTime
) -> tuple[HostState, ...]:
    """Converts answers to host states, sorted by instance. `before` has the previous states by name."""
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
        since_read = max(0.0, sample.value)
        clock_ahead = _value_of(by_host, "clocks", instance) or 0.0
        stale = max(0.0, -clock_ahead)  # a stopped daemon cannot be told from a clock that is behind
        age = since_read + stale
        state = HostState(
            place,
            HostLink.LIVE,
            summary=_summary(queries, sample, by_host, instance, now.unix_seconds - age),
            received_at_seconds=now.seconds - age,
            clock_ahead_seconds=max(0.0, clock_ahead),
            reported_steps_per_second=_rate_of(by_host, "steps", instance),
        )
        reason = ""
        if since_read > late_seconds:
            reason = f"Prometheus has not read it for {duration_text(since_read)}"
        elif stale > _STALE_SECONDS:
            reason = f"its neurond answers with a snapshot that is {duration_text(age)} old"
        if reason:
            state = replace(state, link=HostLink.LOST, loss_reason=reason)
        found[instance] = state
    lost = tuple(sample for sample in answers.get("lost", ()) if sample.labels.get("instance", "") not in found)
    lost_names = _names(lost)
    for sample in lost:
        instance = sample.labels.get("instance", "")
        if instance and instance not in found:
            name = lost_names[instance]  # the node, unless another address is now this node
            name = shown_label(instance) if name in names.values() else name
            found[instance] = _lost(_place(instance, name), instance, sample, before, now)
    return tuple(found[instance] for instance in sorted(found))


def _names(samples: tuple[PrometheusSample, ...]) -> dict[str, str]:
    """Returns the name of each instance: the label `node` if no other instance has the same label, else the address."""
    nodes: dict[str, list[str]] = {}
    for sample in samples:
        nodes.setdefault(sample.labels.get("node", ""), []).append(sample.labels.get("instance", ""))
    return {
        instance: shown_label(node if node and len(same) == 1 else instance)
        for node, same in nodes.items()
        for instance in same
    }


def _place(instance: str, name: str) -> HostAddress:
    """Returns the SSH address of a host, for data that Prometheus does not have."""
    address = name if name != shown_label(instance) else instance.rpartition(":")[0].strip("[]") or instance
    return HostAddress(name, Reach.SSH, shown_label(address))


def _user(sample: PrometheusSample) -> str:
    """Returns the user of a sample: a name, or a UID if the user has no name; "" if unknown."""
    return shown_label(sample.labels.get("user") or sample.labels.get("uid", ""))


def _by_instance(samples: Iterable[PrometheusSample]) -> dict[str, list[PrometheusSample]]:
    found: dict[str, list[PrometheusSample]] = {}
    for sample in samples:
        found.setdefault(sample.labels.get("instance", ""), []).append(sample)
    return found


def _lost(
    place: HostAddress, instance: str, sample: PrometheusSample, before: Mapping[str, HostState], now: QueryTime
) -> HostState:
    """Returns the state of a host that is no longer scraped; the state keeps its last summary."""
    previous = next((state for state in before.values() if state.summary and state.summary.host_name == instance), None)
    state = previous or HostState(place)
    is_down = sample.labels.get("link") == DOWN
    reason = "it does not answer Prometheus" if is_down else "Prometheus no longer asks it"
    is_scraped = math.isfinite(sample.value) and sample.value >= 0
    received = now.seconds - sample.value if is_scraped else state.received_at_seconds
    return replace(state, link=HostLink.LOST, loss_reason=reason, received_at_seconds=received)


def _summary(
    queries: OverviewQueries,
    sample: PrometheusSample,
    by_host: Mapping[str, dict[str, list[PrometheusSample]]],
    instance: str,
    taken_at: float,
) -> HostSummary:
    def value(query: str) -> float:
        found = _value_of(by_host, query, instance)
        return math.nan if found is None else found

    counts, states = queries.counts.read(value("counts")), queries.states.read(value("states"))
    severity = states["severity"]
    is_judged = severity is not None and severity <= max(Severity)
    findings = _findings(by_host.get("findings", {}).get(instance, []), taken_at)
    users = {_user(result) for result in by_host.get("counts", {}).get(instance, ())}
    are_users_known = "" not in users
    simulated = sample.labels.get("instance_id") == _SIMULATED_ID
    return HostSummary(
        host_name=instance,
        instance_type=shown_label(sample.labels.get("instance_type", "")),
        instance_id=shown_label(sample.labels.get("instance_id", "")) or None,
        ultraserver_id=shown_label(sample.labels.get("ultraserver_id", "")) or None,
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
        devices=decode_conditions(value("devices"), is_judged=is_judged),
        utilization_ratio=_ratio(states["utilization"]),
        flops_per_second=None,
        mfu_ratio=_ratio(states["mfu"]),
        device_memory_used_bytes=None,
        device_memory_bytes=None,
        process_count=None,
        jobs=(),
        further_users=tuple(sorted(users - {""})),
        user_count=len(users) if are_users_known and users else None,
        requests_per_second=_rate_of(by_host, "requests", instance),
        models=(),
        model_count=None,
        **counts,
    )


def _value_of(by_host: Mapping[str, dict[str, list[PrometheusSample]]], query: str, instance: str) -> float | None:
    """Returns the result of a query for a host; None if missing or not a finite number."""
    return _first_value(by_host.get(query, {}).get(instance, []))


def _rate_of(by_host: Mapping[str, dict[str, list[PrometheusSample]]], name: str, instance: str) -> float | None:
    """Returns a host's rate from the query for rates, which labels each sample with the name of its rate."""
    samples = by_host.get("rates", {}).get(instance, [])
    return _first_value([sample for sample in samples if sample.labels.get(SAMPLE_OF) == name])


def _first_value(samples: Sequence[PrometheusSample]) -> float | None:
    return samples[0].value if samples and math.isfinite(samples[0].value) else None


def _ratio(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / FULL_RATIO


def _findings(samples: list[PrometheusSample], taken_at: float) -> tuple[SummaryFinding, ...]:
    """Converts samples to findings: the critical findings, then all others, each sorted by age, oldest first."""
    found: list[SummaryFinding] = []
    for sample in sorted(samples, key=lambda each: (each.labels.get("severity") != "critical", -each.value)):
        labels = sample.labels
        severity = Severity.__members__.get(labels.get("severity", "").upper())
        if severity is None or len(found) >= MOST_FINDINGS:
            continue
        found.append(
            SummaryFinding(
                kind=shown_label(labels.get("finding", "")),
                severity=severity,
                reason=shown_label(labels.get("reason", "")),
                began_at_unix_seconds=taken_at - sample.value if math.isfinite(sample.value) else 0.0,
                device_indices=_indices(labels.get("neuron_devices", "")),
                job=shown_label(labels.get("job_name", "")) or None,
                synthetic=labels.get("synthetic") == "true",
                injected=labels.get("injected") == "true",
            )
        )
    return tuple(found)


def _indices(text: str) -> tuple[int, ...]:
    """Parses ranges such as 0-3,7. Ignores malformed parts."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()) and len(part) < 8:
            found += range(int(first), min(int(last) if dash else int(first), int(first) + 64) + 1)
    return tuple(found[:64])


def shown_label(text: str) -> str:
    """Shortens and escapes text from Prometheus for display."""
    return excerpt(text, _LONGEST_LABEL)


_Values = dict[str, float]
_HIGHEST_COUNT = 2**31


def read_jobs(samples: tuple[PrometheusSample, ...], names: Mapping[str, str]) -> tuple[FleetJob, ...]:
    """Converts samples to jobs, those with the most cores first. `names` are the host names by instance."""
    values: dict[tuple[str, str, str], _Values] = {}
    titles: dict[tuple[str, str, str], str] = {}
    slow: dict[str, PrometheusSample] = {}
    for sample in samples:
        labels, quantity = sample.labels, sample.labels.get(queries.SAMPLE_OF, "")
        run_id = labels.get("run_id", "")
        if not isfinite(sample.value) or sample.value < 0:
            continue
        if quantity == queries.SLOW_RANK:
            slow[run_id] = sample
            continue
        key = (run_id, "", "") if run_id else ("", labels.get("instance", ""), labels.get("job_name", ""))
        values.setdefault(key, {})[quantity] = sample.value
        if quantity == "ranks":
            titles[key] = shown_label(labels.get("job_name", ""))
    found = [_job(key, title, values[key], slow.get(key[0]), names) for key, title in titles.items()]
    whole = [job for job in found if job is not None]
    return tuple(sorted(whole, key=lambda job: (-job.neuroncore_count, job.name, job.run_id or "", job.host_names)))


def read_models(samples: Iterable[PrometheusSample]) -> tuple[FleetModel, ...]:
    """Converts samples of the query for rates to served models, those with the most device memory first."""
    values: dict[str, _Values] = {}
    for sample in samples:
        name = sample.labels.get("model", "")
        if name and isfinite(sample.value) and sample.value >= 0:
            values.setdefault(name, {})[sample.labels.get(SAMPLE_OF, "")] = sample.value
    found = [
        FleetModel(
            name=shown_label(name),
            neuroncore_count=_count(each, "neuroncores"),
            requests_per_second=each.get("requests_per_second"),
            request_p99_seconds=each.get("request_p99_seconds"),
            queue_depth=_count(each, "queue_depth"),
            queue_wait_seconds=each.get("queue_wait_seconds"),
            device_memory_bytes=int(each["device_memory_bytes"]) if "device_memory_bytes" in each else None,
            host_count=_count(each, "hosts") or 1,
        )
        for name, each in values.items()
    ]
    return tuple(sorted(found, key=lambda model: (-(model.device_memory_bytes or 0), model.name)))


def read_job_count(samples: tuple[PrometheusSample, ...]) -> int:
    """Returns the number of all jobs, which may be more than `read_jobs` returns."""
    counts = [sample.value for sample in samples if sample.labels.get(queries.SAMPLE_OF) == queries.JOB_COUNT]
    return int(counts[0]) if counts and 0 <= counts[0] < _HIGHEST_COUNT else 0


def _job(
    key: tuple[str, str, str], name: str, values: _Values, slow: PrometheusSample | None, names: Mapping[str, str]
) -> FleetJob | None:
    """Builds a job from its values. Returns None if the ranks or cores are unknown, as when the job starts or ends."""
    run_id, instance, _ = key
    ranks, cores = _count(values, "ranks"), _count(values, "neuroncores")
    if ranks is None or cores is None:
        return None
    host_names = () if run_id else (names.get(instance, shown_label(instance)),)
    place = _count(values, "state")
    state = queries.JOB_STATES[place] if place is not None and place < len(queries.JOB_STATES) else JobState.UNKNOWN
    severity = _count(values, "severity")
    step = values.get("step_seconds")
    return FleetJob(
        name=name,
        run_id=shown_label(run_id) or None,
        host_names=host_names,
        host_count=len(host_names) or _count(values, "hosts"),
        neuroncore_count=cores,
        rank_count=ranks,
        world_size=_count(values, "world_size"),
        missing_ranks=(),
        state=state,
        state_seconds=values.get("since_step") if state in (JobState.TRAINING, JobState.WAITING) else None,
        utilization_ratio=None,
        steps_per_second=values.get("steps_per_second"),
        requests_per_second=values.get("requests_per_second"),
        request_p99_seconds=values.get("request_p99"),
        mfu_ratio=values.get("mfu"),
        step_seconds=None if step is None else StepSeconds(None, step, None),
        slow_rank=None if slow is None else _slow_rank(slow, step, names),
        standstill=None,
        severity=Severity(severity) if severity is not None and severity <= max(Severity) else None,
    )


def _count(values: _Values, name: str) -> int | None:
    value = values.get(name)
    return int(value) if value is not None and value < _HIGHEST_COUNT else None


def _slow_rank(sample: PrometheusSample, step_seconds: float | None, names: Mapping[str, str]) -> SlowFleetRank | None:
    """Builds the straggler of a job from its sample; None if the rank or the step time is unknown."""
    rank, instance = sample.labels.get("rank", ""), sample.labels.get("instance", "")
    if step_seconds is None or not (rank.isascii() and rank.isdecimal() and len(rank) < 8):
        return None
    return SlowFleetRank(
        rank=int(rank),
        host_name=names.get(instance, shown_label(instance)),
        pid=None,
        part=None,
        gain_seconds=sample.value * step_seconds,
        gain_ratio=sample.value,
    )
