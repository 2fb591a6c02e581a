"""Hosts in groups, by type, job, user, condition or a label of theirs, each told as one host would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.fleet.hosts import Place
from neurontools.fleet.states import HostState, Link, gravity
from neurontools.fleet.summary import HostSummary

TYPE, JOB, USER, ALIKE = "type", "job", "user", "alike"
_NO_USER, _UNKNOWN_USER = "no user", "user unknown"  # names of users have no spaces


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts that have something in common; one with two jobs or users is in two groups."""

    by: str
    value: str
    states: tuple[HostState, ...]

    @property
    def name(self) -> str:
        """What it is called where hosts have names."""
        return f"{self.value}, {len(self.states)} host{'s' if len(self.states) != 1 else ''}"


def ways(states: Iterable[HostState]) -> tuple[str, ...]:
    """By what these hosts can be grouped."""
    labels = {name: None for state in states for name, _ in state.place.labels}
    return tuple(dict.fromkeys((ALIKE, TYPE, JOB, USER, *sorted(labels))))


def groups(states: Iterable[HostState], by: str) -> list[HostGroup]:
    """The groups in the order of their first hosts; `by` is one of `ways`."""
    values = _WAYS.get(by) or (lambda state: (dict(state.place.labels).get(by) or f"no {by}",))
    found: dict[str, list[HostState]] = {}
    for state in states:
        for value in values(state):
            found.setdefault(value, []).append(state)
    return [HostGroup(by, value, tuple(members)) for value, members in found.items()]


def together(group: HostGroup) -> HostState:
    """The group as the row of a host: sums of what is counted, means over held cores, the worst of its hosts."""
    worst = min(group.states, key=gravity)
    live = [state for state in group.states if state.link is Link.LIVE and state.summary is not None]
    summaries = [state.summary for state in live if state.summary is not None]
    place = Place(group.name, worst.place.reach, "")
    if not summaries:
        return replace(worst, place=place, summary=None)
    kinds = {found.instance_type for found in summaries}
    said = max(summaries, key=lambda found: -1 if found.severity is None else found.severity)
    is_judged = all(found.is_judged for found in summaries) or bool(said.severity)
    summary = replace(
        said,
        host_name=group.value,
        instance_type=kinds.pop() if len(kinds) == 1 else "",
        is_judged=is_judged,
        devices=(),
        jobs=(),
        further_users=(),
        user_count=None,
        job_count=_job_count(summaries),
        **{name: _total(summaries, name) for name in _COUNTS},  # type: ignore[arg-type]
        **{name: _mean(summaries, name) for name in ("utilization_ratio", "mfu_ratio")},  # type: ignore[arg-type]
    )
    received = [state.received_at_seconds for state in live if state.received_at_seconds is not None]
    return HostState(place, Link.LIVE, summary=summary, received_at_seconds=min(received, default=None))


_COUNTS = (
    "critical_count",
    "warning_count",
    "notice_count",
    "neuroncore_count",
    "held_neuroncore_count",
    "busy_neuroncore_count",
    "free_neuroncore_count",
    "process_count",
)


def _job_count(summaries: Sequence[HostSummary]) -> int | None:
    """A run on several of them is one job; None where it is not told which runs they have."""
    if len(summaries) == 1:
        return summaries[0].job_count
    if any(found.job_count is None or len(found.jobs) < found.job_count for found in summaries):
        return None
    runs = [job.run_id for found in summaries for job in found.jobs]
    return len({run_id for run_id in runs if run_id is not None}) + runs.count(None)


def _total(summaries: Sequence[HostSummary], name: str) -> int | None:
    known = [count for found in summaries if (count := getattr(found, name)) is not None]
    return sum(known) if known else None


def _mean(summaries: Sequence[HostSummary], name: str) -> float | None:
    """Over held cores."""
    known = [
        (ratio * found.held_neuroncore_count, found.held_neuroncore_count)
        for found in summaries
        if (ratio := getattr(found, name)) is not None and found.held_neuroncore_count
    ]
    return sum(part for part, _ in known) / sum(count for _, count in known) if known else None


def _type(state: HostState) -> tuple[str, ...]:
    return ((state.summary and state.summary.instance_type) or "type not known",)


def _jobs(state: HostState) -> tuple[str, ...]:
    named = [job.name for job in state.summary.jobs if job.name] if state.summary is not None else []
    return tuple(dict.fromkeys(named)) or ("no job",)


def _users(state: HostState) -> tuple[str, ...]:
    """Those that are told; where there are more, or none is known, the host is among the unknown too."""
    found = state.summary
    if found is None:
        return (_UNKNOWN_USER,)
    users = found.users
    if not users and 0 in (found.user_count, found.job_count):
        return (_NO_USER,)
    return users if users and found.user_count == len(users) else (*users, _UNKNOWN_USER)


def _alike(state: HostState) -> tuple[str, ...]:
    """What tells a host from those that do the same: its type, how it is, and how many cores are held."""
    found = state.summary
    if state.link is not Link.LIVE or found is None:
        return (f"{state.link}",)
    kind = found.findings[0].kind if found.findings and found.severity else ""
    how = "health not known" if found.severity is None else kind or "well"
    held, cores = found.held_neuroncore_count, found.neuroncore_count
    work = "cores not known" if held is None else "free" if not held else "held" if held == cores else "held in part"
    return (f"{found.instance_type or 'type not known'}, {how}, {work}",)


_WAYS: dict[str, Callable[[HostState], tuple[str, ...]]] = {TYPE: _type, JOB: _jobs, USER: _users, ALIKE: _alike}
