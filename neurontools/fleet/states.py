"""The state of each host in a fleet view; sorting, grouping and deduplicating hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from string import digits

from neurontools.fleet.hosts import HostAddress
from neurontools.fleet.summary import HostSummary
from neurontools.model import Severity, SourceKind
from neurontools.util.units import max_known, sum_known


class HostLink(StrEnum):
    WAITING = "waiting"  # not connected yet; a feed connects a few hosts at a time
    CONNECTING = "connecting"  # connecting; no answer yet
    LIVE = "live"
    LOST = "lost"  # connection lost; the feed retries


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host in a view. A lost host keeps its last summary."""

    place: HostAddress
    link: HostLink = HostLink.WAITING
    loss_reason: str = ""  # why the host is lost, in one line
    summary: HostSummary | None = None  # the latest summary
    received_at_seconds: float | None = None  # time.monotonic() of this process; clocks of other hosts may differ
    clock_ahead_seconds: float = 0.0  # the host's clock minus ours, at the latest summary
    reported_steps_per_second: float | None = None  # steps per second of the host, if the feed knows no rate per job

    def age_seconds(self, now_seconds: float) -> float | None:
        """Returns the age of the summary at `now_seconds` (time.monotonic()); None without a summary."""
        return None if self.received_at_seconds is None else max(0.0, now_seconds - self.received_at_seconds)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of the largest job with a known rate, else those that the feed has for the host."""
        found = None if self.summary is None else self.summary.steps_per_second
        return self.reported_steps_per_second if found is None else found

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the host's findings; None if unknown, for example for a lost host."""
        return self.summary.severity if self.summary is not None and self.link is HostLink.LIVE else None

    @property
    def is_settled(self) -> bool:
        """Whether the host has answered or is lost."""
        return self.link in (HostLink.LIVE, HostLink.LOST)


_SEVERITY_RANKS = {Severity.CRITICAL: 0, Severity.WARNING: 2, None: 3, Severity.NOTICE: 5, Severity.OK: 6}
_LOST, _WAITING = 1, 4


def severity_rank(state: HostState) -> int:
    """Returns a sort key, 0 for the worst.

    The order is: critical finding, lost host, warning, unknown health, host without an answer yet, notice, healthy.
    """
    if state.link is HostLink.LOST:
        return _LOST
    return _SEVERITY_RANKS[state.severity] if state.link is HostLink.LIVE else _WAITING


def worst_first(states: Iterable[HostState]) -> list[HostState]:
    """Sorts hosts by severity, then by the number of critical findings and of warnings, then by name."""

    def sort_key(state: HostState) -> tuple[int, int, int, tuple[tuple[int, str], ...]]:
        found = state.summary
        counts = (-found.critical_count, -found.warning_count) if found is not None else (0, 0)
        return severity_rank(state), *counts, _by_number(state.place.name)

    return sorted(states, key=sort_key)


def by_name(states: Iterable[HostState]) -> list[HostState]:
    """Sorts hosts by name in natural order: host-2 before host-10."""
    return sorted(states, key=lambda state: _by_number(state.place.name))


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Returns the sort key of a name: its numbers by their value, other characters by themselves."""
    parts = re.findall(r"[0-9]+|[^0-9]", f"{name}\0", re.DOTALL)
    return tuple((int(part[:18]), part) if part[0] in digits else (-1, part) for part in parts)


TYPE, JOB, USER, ALIKE = "type", "job", "user", "alike"
_NO_USER, _UNKNOWN_USER = "no user", "user unknown"  # names of groups; with a space, so that no user has such a name


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts with a common property. A host with two jobs or users is in two groups."""

    by: str
    value: str
    states: tuple[HostState, ...]

    @property
    def name(self) -> str:
        """The name of the group, with its number of hosts and of lost ones; shown like a host name."""
        lost = sum(state.link is HostLink.LOST for state in self.states)
        name = f"{self.value}, {len(self.states)} host{'s' if len(self.states) != 1 else ''}"
        return f"{name}, {lost} lost" if 0 < lost < len(self.states) else name


def grouping_choices(states: Iterable[HostState]) -> tuple[str, ...]:
    labels = {name: None for state in states for name, _ in state.place.labels}
    return tuple(dict.fromkeys((ALIKE, TYPE, JOB, USER, *sorted(labels))))


def group_hosts(states: Iterable[HostState], by: str) -> list[HostGroup]:
    """Groups hosts by a property, one of `grouping_choices`. The groups are in the order of their first hosts."""
    values = _GROUPINGS.get(by) or (lambda state: (dict(state.place.labels).get(by) or f"no {by}",))
    found: dict[str, list[HostState]] = {}
    for state in states:
        for value in values(state):
            found.setdefault(value, []).append(state)
    return [HostGroup(by, value, tuple(members)) for value, members in found.items()]


def combine_group(group: HostGroup) -> HostState:
    """Combines a group into one row: sums of counts, means over held cores, the worst state of its hosts."""
    worst = min(group.states, key=severity_rank)
    live = [state for state in group.states if state.link is HostLink.LIVE and state.summary is not None]
    summaries = [state.summary for state in live if state.summary is not None]
    place = HostAddress(group.name, worst.place.reach, "")
    if not summaries:
        return replace(worst, place=place, summary=None)
    kinds = {found.instance_type for found in summaries}
    most_severe = max(summaries, key=lambda found: -1 if found.severity is None else found.severity)
    is_judged = all(found.severity is not None for found in summaries) or bool(most_severe.severity)
    summary = replace(
        most_severe,
        host_name=group.value,
        instance_type=kinds.pop() if len(kinds) == 1 else "",
        is_judged=is_judged,
        devices=(),
        jobs=(),
        models=(),
        further_users=(),
        user_count=None,
        job_count=_job_count(summaries),
        **{name: sum_known(getattr(found, name) for found in summaries) for name in _COUNTS},  # type: ignore[arg-type]
        **{name: _mean(summaries, name) for name in ("utilization_ratio", "mfu_ratio")},  # type: ignore[arg-type]
        request_p99_seconds=max_known(found.request_p99_seconds for found in summaries),
    )
    received = [state.received_at_seconds for state in live if state.received_at_seconds is not None]
    return HostState(place, HostLink.LIVE, summary=summary, received_at_seconds=min(received, default=None))


_COUNTS = (
    "critical_count",
    "warning_count",
    "notice_count",
    "neuroncore_count",
    "held_neuroncore_count",
    "busy_neuroncore_count",
    "free_neuroncore_count",
    "process_count",
    "requests_per_second",
)


def _job_count(summaries: Sequence[HostSummary]) -> int | None:
    """Returns the number of jobs; a run on several hosts counts once. None if not all runs are known."""
    if len(summaries) == 1:
        return summaries[0].job_count
    if any(found.job_count is None or len(found.jobs) < found.job_count for found in summaries):
        return None
    runs = [job.run_id for found in summaries for job in found.jobs]
    return len({run_id for run_id in runs if run_id is not None}) + runs.count(None)


def _mean(summaries: Sequence[HostSummary], name: str) -> float | None:
    """Returns the mean of a ratio over the held cores of all hosts."""
    weighted = [
        (ratio * found.held_neuroncore_count, found.held_neuroncore_count)
        for found in summaries
        if (ratio := getattr(found, name)) is not None and found.held_neuroncore_count
    ]
    return sum(part for part, _ in weighted) / sum(count for _, count in weighted) if weighted else None


def _jobs(state: HostState) -> tuple[str, ...]:
    named = [job.name for job in state.summary.jobs if job.name] if state.summary is not None else []
    return tuple(dict.fromkeys(named)) or ("no job",)


def _users(state: HostState) -> tuple[str, ...]:
    """Returns the users of a host. Adds "user unknown" if some or all of them are not known."""
    found = state.summary
    if found is None:
        return (_UNKNOWN_USER,)
    users = found.users
    if not users and 0 in (found.user_count, found.job_count):
        return (_NO_USER,)
    return users if users and found.user_count == len(users) else (*users, _UNKNOWN_USER)


def _condition_text(state: HostState) -> tuple[str, ...]:
    """Returns the type, the health and the use of the cores of a host as a text. Hosts with equal texts are alike."""
    found = state.summary
    if state.link is not HostLink.LIVE or found is None:
        return (f"{state.link}",)
    kind = found.findings[0].kind if found.findings and found.severity else ""
    how = "health not known" if found.severity is None else kind or "well"
    work = {None: "cores not known", 0: "free"}.get(
        found.held_neuroncore_count,
        "held" if found.held_neuroncore_count == found.neuroncore_count else "held in part",
    )
    return (f"{found.instance_type or 'type not known'}, {how}, {work}",)


_GROUPINGS: dict[str, Callable[[HostState], tuple[str, ...]]] = {
    TYPE: lambda state: ((state.summary and state.summary.instance_type) or "type not known",),
    JOB: _jobs,
    USER: _users,
    ALIKE: _condition_text,
}


_BOOT_SECONDS = 0.1  # tolerance for boot times: the clock may be adjusted between two readings
_MOST_NAMED = 3


def deduplicate_hosts(states: Sequence[HostState]) -> tuple[tuple[HostState, ...], tuple[str, ...]]:
    """Returns the hosts, each only under the first of its names, and lines about hosts that were named twice."""
    by_key: dict[tuple[str, ...], list[tuple[float, HostState]]] = {}
    unique: list[HostState] = []
    same: list[str] = []
    for state in states:
        found = state.summary
        key = _key(found) if found is not None and state.link is HostLink.LIVE else None
        if key is None or found is None:
            unique.append(state)
            continue
        booted = found.taken_at_unix_seconds - found.taken_at_seconds if found.taken_at_seconds is not None else 0.0
        others = by_key.setdefault(key, [])
        first = next((other for at, other in others if abs(at - booted) < _BOOT_SECONDS), None)
        if first is None:
            others.append((booted, state))
            unique.append(state)
        else:
            same.append(f"{state.place.name} is the same host as {first.place.name}: one row")
    more = (f"and {len(same) - _MOST_NAMED} more hosts are named twice",) if len(same) > _MOST_NAMED else ()
    return tuple(unique), (*same[:_MOST_NAMED], *more)


def _key(found: HostSummary) -> tuple[str, ...] | None:
    """Returns the names and IDs that identify a host together with its boot time. None if they are unknown.

    A daemon reports the host name, Prometheus has the instance ID. Simulated hosts share one real host and its boot
    time, so they are never merged.
    """
    if found.source is SourceKind.SIMULATED:
        return None
    if found.taken_at_seconds is not None:
        return found.host_name, found.instance_type, found.instance_id or ""
    return ("", "", found.instance_id) if found.instance_id else None
