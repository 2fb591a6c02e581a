"""The verdict on a run: which causes take the time of a training step, and what to do about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from neurontools.profile import Profile, SourceLine, SpanKind
from neurontools.profile.analysis.report import RankReport, RunReport
from neurontools.profile.analysis.steps import NS_PER_SECOND, TimeSplit
from neurontools.profile.definitions import WARM_UP_STEPS, Phase, script_line
from neurontools.util.units import counted

LEAST_CAUSE_RATIO = 0.01
"""Causes that take a smaller share of the time are left out, unless a count is their evidence."""

LEAST_ACTION_RATIO = 0.1
"""Causes with a smaller share of the time have no next step: xprof's threshold for an input-bound step."""

READS_PER_STEP = 0.5
"""PyTorch/XLA's metrics analysis reports more transfers from the device per step than this."""

STEPS_PER_LATE_GRAPH = 50
"""A training that compiles a new graph more often than once in so many steps compiles too often."""

LOAD_AHEAD = "load batches in advance: DataLoader(num_workers=…, persistent_workers=True)"
CONSTANT_SHAPES = "keep shapes constant: pad to one size or a few sizes, and use DataLoader(drop_last=True)"
READ_SELDOM = (
    "read only every few steps, or in the background: xm.add_step_closure(print, args=(loss,), run_async=True)"
)
LARGER_EXECUTIONS = "several batches per execution: MpDeviceLoader(loader, device, batches_per_execution=10)"


class Bound(StrEnum):
    """The kind of work that takes the largest share of a step."""

    INPUT = "input-bound"
    COMMUNICATION = "communication-bound"
    COMPILE = "compile-bound"
    HOST = "host-bound"
    COMPUTE = "compute-bound"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of the duration of a step.

    `seconds` is per step, or of the whole profile if it has no steps. `ratio` is its share of that time. `part` is the
    part of a step that has this time, one of PART_NAMES. `place` is the line of the script with the largest share; None
    if unknown. `next_step` is "" if nothing is to be done.
    """

    bound: Bound
    part: str
    text: str
    seconds: float
    ratio: float
    place: SourceLine | None
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class ProfileVerdict:
    """The causes in descending order of their time, and the kind of work that takes most of it."""

    bound: Bound
    ratio: float  # share of the time that work of kind `bound` takes
    causes: tuple[Cause, ...]


def find_verdict(report: RunReport) -> ProfileVerdict | None:
    """Derives the verdict from a report. Returns None if the profile covers no time."""
    if report.split.total_seconds <= 0:
        return None
    found = sorted(_causes(report), key=lambda cause: -cause.seconds)
    shares = dict.fromkeys(Bound, 0.0)
    for cause in found:
        shares[cause.bound] += cause.ratio
    bound = max(shares, key=shares.__getitem__)
    shown = tuple(cause for cause in found if cause.ratio >= LEAST_CAUSE_RATIO or cause.next_step)
    return ProfileVerdict(bound, shares[bound], shown)


def goes_on(late_steps: Sequence[int], steps_total: int) -> bool:
    """Returns whether steps of the second half still have new graphs. `late_steps` are the latest steps with new ones.

    A loader with a few sizes of batches (buckets) has usually shown all of them in the first half.
    """
    if not late_steps:
        return False
    begin = max((WARM_UP_STEPS + steps_total) / 2, late_steps[0] - 1)
    recent = sum(step > begin for step in late_steps)
    return recent > 1 and recent * STEPS_PER_LATE_GRAPH > steps_total - begin


def _causes(report: RunReport) -> Iterator[Cause]:
    split, steps = report.split, report.split_steps

    def cause(
        bound: Bound, part: str, text: str, seconds: float, place: SourceLine | None, next_step: str = ""
    ) -> Cause:
        return Cause(bound, part, text, seconds / steps, seconds / split.total_seconds, place, next_step)

    def needs_action(seconds: float) -> bool:
        return seconds >= LEAST_ACTION_RATIO * split.total_seconds

    yield cause(
        Bound.INPUT,
        "input wait",
        "waiting for the data loader",
        split.input_wait_seconds,
        _longest_line(report.profiles, SpanKind.INPUT_WAIT),
        LOAD_AHEAD if needs_action(split.input_wait_seconds) else "",
    )
    yield cause(
        Bound.COMMUNICATION,
        "collectives",
        _rank_wait_text(report),
        split.collective_seconds,
        None,
        _rank_wait_step(report) if needs_action(split.collective_seconds) else "",
    )
    late_graphs = [graph for graph in report.graphs if graph.first_step > WARM_UP_STEPS]
    yield cause(
        Bound.COMPILE,
        "compile",
        f"compiling {counted(len(late_graphs), 'graph')} after step {WARM_UP_STEPS}"
        if late_graphs
        else "waiting for compiled graphs",
        split.compile_seconds,
        late_graphs[-1].place if late_graphs else None,
        f"{CONSTANT_SHAPES} (in the last graph {late_graphs[-1].reason})"
        if goes_on([graph.first_step for graph in late_graphs], report.step_count)
        else "",
    )
    reads, reading_seconds, place = _host_reads(report)
    reading_seconds = min(reading_seconds, split.transfer_seconds)
    if reads > READS_PER_STEP:
        yield cause(
            Bound.HOST,
            "transfer",
            f"{reads:.1f} host reads a step, each a wait on hardware",
            reading_seconds,
            place,
            READ_SELDOM,
        )
    transfers = split.transfer_seconds - reading_seconds
    yield cause(
        Bound.HOST,
        "transfer",
        "copying between host and device",
        transfers,
        _longest_line(report.profiles, SpanKind.TO_DEVICE),
        "copy fewer bytes: create tensors on the device, and move each batch once" if needs_action(transfers) else "",
    )
    yield cause(
        Bound.HOST,
        "host tracing",
        "host code: Python, and tracing the script",
        split.host_seconds,
        None,
        LARGER_EXECUTIONS if needs_action(split.host_seconds) else "",
    )
    for phase, seconds, line in _executed_phases(report):
        if phase is Phase.COLLECTIVES:
            yield cause(Bound.COMMUNICATION, "execute", "moving data in collectives", seconds, line)
        else:
            yield cause(Bound.COMPUTE, "execute", "executing graphs" if phase is None else phase.value, seconds, line)


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


def _longest_line(profiles: Sequence[Profile], kind: SpanKind) -> SourceLine | None:
    """Returns the line of the script with the most time in spans of one kind; None if no span has a stack."""
    times: Counter[SourceLine] = Counter()
    for profile in profiles:
        for span in profile.spans:
            place = script_line(profile.stack(span.stack)) if span.kind == kind else None
            if place is not None:
                times[place] += span.end_ns - span.start_ns + 1  # counts a span even if its time rounds to 0
    return times.most_common(1)[0][0] if times else None


def _host_reads(report: RunReport) -> tuple[float, float, SourceLine | None]:
    """Returns the reads per step and rank, their seconds, and their most frequent line.

    Counts only spans of `steady_steps`. Omits reads at lines that are in less than half of the steps, because these
    are evaluations or logs.
    """
    reads, seconds = 0, 0.0
    steps_by_line: dict[SourceLine, set[tuple[int, int]]] = {}
    found: list[tuple[SourceLine | None, int]] = []
    for rank in report.ranks:
        steady = set(rank.steps.column("step"))
        for span in rank.profile.spans:
            if span.kind == SpanKind.FROM_DEVICE and span.step in steady:
                place = script_line(rank.profile.stack(span.stack))
                found.append((place, span.end_ns - span.start_ns))
                if place is not None:
                    steps_by_line.setdefault(place, set()).add((rank.number, span.step))
    least = READS_PER_STEP * report.split_steps
    regular = {place for place, at in steps_by_line.items() if len(at) > least}
    for place, duration_ns in found:
        if place in regular:
            reads += 1
            seconds += duration_ns / NS_PER_SECOND
    line = max(regular, key=lambda each: len(steps_by_line[each]), default=None)
    return reads / report.split_steps, seconds, line


def _rank_wait_text(report: RunReport) -> str:
    straggler = report.straggler
    if straggler is None:
        return "ranks waiting for each other in collectives"
    part, seconds = _excess(straggler, report.ranks)
    reason = "" if part is None else f": it has {1e3 * seconds:.1f} ms more {part} a step"
    return f"ranks waiting for rank {straggler.number}{reason}"


def _rank_wait_step(report: RunReport) -> str:
    straggler = report.straggler
    if straggler is None:
        return "reduce less often: gradient accumulation, larger buckets, or a larger batch per rank"
    return f"give rank {straggler.number} the same work as the others, and look at its host"


def _excess(straggler: RankReport, ranks: Sequence[RankReport]) -> tuple[str | None, float]:
    """Returns the part of a step in which a rank exceeds the median of the others most, and its excess in seconds."""
    others = [rank for rank in ranks if rank is not straggler]
    own = _parts_per_step(straggler)
    excess = {
        name: seconds - median(_parts_per_step(other)[name] for other in others)
        for name, seconds in own.items()
        if name != _COLLECTIVES
    }
    part = max(excess, key=excess.__getitem__)
    return (part, excess[part]) if excess[part] > 0 else (None, 0.0)


_COLLECTIVES = "collectives"
_EXCESS_NAMES = {"host tracing": "host code", "execute": "execution", "input wait": "waiting for input"}


def _parts_per_step(rank: RankReport) -> dict[str, float]:
    split: TimeSplit = rank.split
    return {_EXCESS_NAMES.get(name, name): seconds / max(1, len(rank.steps)) for name, seconds in split.parts()}
