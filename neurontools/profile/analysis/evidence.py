"""The evidence from which a verdict is found, in the form that a profile and the counters of a live run share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from neurontools.profile import Profile, SourceLine, SpanKind
from neurontools.profile.analysis.report import RankReport, RunReport
from neurontools.profile.analysis.steps import NS_PER_SECOND, TimeSplit
from neurontools.profile.definitions import WARM_UP_STEPS, Phase, caller_package, script_line


class EventKind(StrEnum):
    """The kind of an event at a line of the script. Reads and graphs of packages that run the loop are no events."""

    INPUT_WAIT = "wait for a batch"
    COPY = "copy to the device"
    READ = "read from the device"
    GRAPH = "graph that is new after the warm-up"


@dataclass(slots=True)
class LineEvents:
    """Events of one kind at one line of the script, with the steps in which they occurred.

    `late_steps` has the numbers of the latest steps with a new graph. The count of a live run is scaled to the steps
    that are measured, so it may have a fraction.
    """

    kind: EventKind
    place: SourceLine
    count: float = 0
    seconds: float = 0.0
    steps: int = 0
    late_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """The time of one rank's steps, without the first, and its events by line. `steps` is 0 if no step was counted.

    `run_delay_ratio` is the share of the time for which other processes kept the CPUs busy; None if unknown.
    """

    rank: int
    steps: int
    split: TimeSplit
    lines: tuple[LineEvents, ...]
    run_delay_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """The evidence of a run: its ranks, at least one, and the time of its executions.

    `graph_change` is the difference between the last graph and the one before. `executed` divides the execution time
    of all ranks by phase, each with its main line; the phase is None if operators were not timed.
    """

    ranks: tuple[RankEvidence, ...]
    steps_total: int  # of the rank with the most steps, with the first one
    graph_change: str
    executed: tuple[tuple[Phase | None, float, SourceLine | None], ...] = field(default=())


def profile_evidence(report: RunReport) -> RunEvidence:
    """Collects the evidence of a profile."""
    late = [graph for graph in report.graphs if graph.first_step > WARM_UP_STEPS]
    return RunEvidence(
        ranks=tuple(
            RankEvidence(rank.number, len(rank.steps), rank.split, _line_events(rank)) for rank in report.ranks
        ),
        steps_total=report.step_count,
        graph_change=late[-1].reason if late else "",
        executed=tuple(_executed_phases(report)),
    )


_KINDS = {
    SpanKind.INPUT_WAIT: EventKind.INPUT_WAIT,
    SpanKind.TO_DEVICE: EventKind.COPY,
    SpanKind.FROM_DEVICE: EventKind.READ,
}


def _line_events(rank: RankReport) -> tuple[LineEvents, ...]:
    profile = rank.profile
    steady = set(rank.steps.column("step"))
    found: dict[tuple[EventKind, SourceLine], LineEvents] = {}
    at_steps: dict[tuple[EventKind, SourceLine], set[int]] = {}
    for kind, place, step, seconds in (*_span_events(profile, steady), *_late_graphs(profile)):
        key = (kind, place)
        line = found.setdefault(key, LineEvents(kind, place))
        line.count += 1
        line.seconds += seconds
        at_steps.setdefault(key, set()).add(step)
    for key, line in found.items():
        line.steps = len(at_steps[key])
        line.late_steps = tuple(sorted(at_steps[key])) if line.kind is EventKind.GRAPH else ()
    return tuple(found.values())


_Event = tuple[EventKind, SourceLine, int, float]


def _span_events(profile: Profile, steady: set[int]) -> Iterator[_Event]:
    for span in profile.spans:
        kind = _KINDS.get(SpanKind(span.kind))
        if kind is None or (steady and span.step not in steady):
            continue
        stack = profile.stack(span.stack)
        place = script_line(stack)
        if place is not None and not (kind is EventKind.READ and caller_package(stack, with_models=True)):
            yield kind, place, span.step, (span.end_ns - span.start_ns) / NS_PER_SECOND


def _late_graphs(profile: Profile) -> Iterator[_Event]:
    """Yields the graphs of the script after the warm-up, each once, also if it was loaded onto several cores."""
    seen: set[str] = set()
    for graph in profile.graphs:
        stack = profile.stack(graph.stack)
        place = script_line(stack)
        is_new = graph.step > WARM_UP_STEPS and graph.hash_text not in seen
        seen.add(graph.hash_text)
        # Batches come from the script, also if a library loads them; a library may change operators of its own.
        if is_new and place is not None and (" input" in graph.reason or caller_package(stack) is None):
            yield EventKind.GRAPH, place, graph.step, (graph.compile_ns or 0) / NS_PER_SECOND


def _executed_phases(report: RunReport) -> Iterator[tuple[Phase | None, float, SourceLine | None]]:
    """Yields the time of executions by phase, without waiting for other ranks, and the line with the most time.

    Divides the execution time of the steps in proportion to the operators of the whole profile. The phase is None if
    no operator has a time.
    """
    totals_ns = {phase: lines.total() for phase, lines in report.line_ns_by_phase.items()}
    if Phase.COLLECTIVES in totals_ns:
        waited_ns = sum(sum(profile.steps.column("collective_ns")) for profile in report.profiles)
        totals_ns[Phase.COLLECTIVES] = max(0, totals_ns[Phase.COLLECTIVES] - waited_ns)
    whole_ns = sum(totals_ns.values())
    if not whole_ns:
        yield None, report.split.compute_seconds, None
        return
    for phase, total_ns in totals_ns.items():
        line, _ = report.line_ns_by_phase[phase].most_common(1)[0]
        yield phase, report.split.compute_seconds * total_ns / whole_ns, line


def sum_lines(ranks: Iterable[RankEvidence], kind: EventKind) -> list[LineEvents]:
    """Sums the events of one kind by line over all ranks, the line with the most time first."""
    found: dict[SourceLine, LineEvents] = {}
    for rank in ranks:
        for line in rank.lines:
            if line.kind is kind:
                total = found.setdefault(line.place, LineEvents(kind, line.place))
                total.count += line.count
                total.seconds += line.seconds
                total.steps += line.steps
    return sorted(found.values(), key=lambda line: (-line.seconds, -line.steps))
