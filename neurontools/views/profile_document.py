"""The report on a profile as a JSON document and as CSV tables.

Field names end in their unit (`_bytes`, `_seconds`, `_ratio` of 0..1); null means unknown. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from neurontools.profile import SourceLine
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.memory import MemoryPeak
from neurontools.profile.analysis.operators import GraphUse, OperatorUse
from neurontools.profile.analysis.report import RankReport, RunReport
from neurontools.profile.analysis.steps import NS_PER_SECOND, SlowStep, TimeSplit
from neurontools.profile.analysis.topology import LinkKind, LinkUse, RankPlace
from neurontools.profile.analysis.verdict import Bound, RunVerdict, find_verdict
from neurontools.profile.definitions import ENGINE_NAMES, Phase
from neurontools.util.formats import copy_fields, csv_line, foreign_cell, json_text

SCHEMA_VERSION = 1
CSV_TABLES = ("operators", "steps", "graphs", "ranks")
_STEP_CSV_COLUMNS = ("compile_ns", "input_wait_ns", "transfer_ns", "compute_ns", "collective_ns")
_RANK_CSV_COLUMNS = (
    *("rank", "host", "pid", "steps_total", "step_mean_seconds", "step_p50_seconds", "step_p99_seconds"),
    *("split.total_seconds", "split.host_seconds", "split.compile_seconds", "split.input_wait_seconds"),
    *("split.transfer_seconds", "split.compute_seconds", "split.collective_seconds", "split.busy_ratio"),
    *("executions_total", "execution_seconds", "flop_total", "mfu_ratio", "hbm_peak_bytes"),
)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The time of a training step or of a run. Its parts add up to the total, unless some of the parts overlap."""

    total_seconds: float
    host_seconds: float
    compile_seconds: float
    input_wait_seconds: float
    transfer_seconds: float
    compute_seconds: float
    collective_seconds: float
    busy_ratio: float | None


@dataclass(frozen=True, slots=True)
class SlowStepPart:
    """One of the slowest steps of a rank, with the split of its time."""

    step: int
    split: SplitPart


@dataclass(frozen=True, slots=True)
class ShareOfMemory:
    """HBM of one category that one line of the script had allocated when HBM use was at its peak."""

    category: str
    line: str | None
    function: str | None
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class PeakPart:
    """The peak of HBM use on one core, among the events that the profile contains.

    `highest_bytes` is the highest HBM use in the whole profile, including times whose events were dropped.
    """

    core: int
    at: str | None
    bytes: int
    highest_bytes: int
    by_category_bytes: dict[str, int]
    shares: tuple[ShareOfMemory, ...]


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank of the profiled run."""

    rank: int
    worker: str
    host: str
    pid: int
    cores: tuple[int, ...]
    devices: tuple[int, ...]  # the devices that have these cores; empty if the instance type is unknown
    began_at: str | None
    has_ended: bool
    is_damaged: bool
    failure: str | None
    dropped: dict[str, int]
    steps_total: int
    step_mean_seconds: float | None
    step_p50_seconds: float | None
    step_p99_seconds: float | None
    step_longest_seconds: float | None
    first_step: SlowStepPart | None  # the first step with all time before it; `split` and the step times exclude it
    slowest_steps: tuple[SlowStepPart, ...]
    split: SplitPart
    executions_total: int
    execution_seconds: float
    flop_total: int
    mfu_ratio: float | None
    hbm_peak_bytes: int | None
    hbm_limit_bytes: int | None
    peak: PeakPart | None


@dataclass(frozen=True, slots=True)
class OperatorPart:
    """An operator at one source line, with the totals of its executions by all ranks."""

    name: str
    engine: str  # engine that computes the operator, inferred from the operator's name
    line: str | None
    is_backward: bool
    result: str
    count: int
    seconds: float
    longest_seconds: float
    flop_total: int
    bytes_total: int
    seconds_by_rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GraphPart:
    """A graph, with the totals of its executions by all ranks."""

    hash: str
    module: str
    reason: str
    line: str | None
    first_step: int
    operator_count: int
    flops: int
    code_bytes: int
    scratchpad_bytes: int
    compile_seconds: float | None
    was_cached: bool | None
    executions_total: int
    failures_total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """One kind of collective, such as all_reduce. Times include the wait for other ranks."""

    name: str
    count: int
    seconds: float
    bytes_total: int
    seconds_by_rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NamedSpanPart:
    """The spans of one `torch_xla.debug.profiler.Trace`, among the events that the profile contains.

    `path` has the names from the outermost span to this one. Times include those of inner spans.
    """

    path: tuple[str, ...]
    count: int
    seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class LinkPart:
    """The bytes that moved over a link. Collectives are calculated for rings in the order of the ranks.

    Data between devices counts in both directions; copies between host and device go from `source` to `target`.
    """

    kind: LinkKind | None
    source_host: str
    source_device: int | None  # null: the host itself, or an unknown device
    target_host: str
    target_device: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class CausePart:
    """A cause of the duration of a step; `seconds` is per step, or of the whole profile if it has no steps."""

    bound: Bound
    text: str
    seconds: float
    ratio: float  # share of a step
    line: str | None
    next_step: str | None


@dataclass(frozen=True, slots=True)
class VerdictPart:
    """The kind of work that takes the largest share of a step, and all causes, the longest first."""

    bound: Bound
    ratio: float  # share of a step that this kind of work takes
    causes: tuple[CausePart, ...]


@dataclass(frozen=True, slots=True)
class ModulePart:
    """A module of the model, or an optimizer, with the totals of its operators by all ranks."""

    name: str | None  # path of class names; null: operators outside of modules
    seconds_by_phase: dict[str, float]
    flop_total: int


@dataclass(frozen=True, slots=True)
class ProfileDocument:
    """The JSON document of a profiled run. Lists by rank are in the order of `ranks`."""

    schema_version: int
    instance_type: str | None
    device_time: str  # the device on which times were measured, or for which they were modelled
    script: str
    steps_total: int
    flop_total: int
    mfu_ratio: float | None
    waited_for_rank: int | None  # rank of the straggler, which waits least in collectives; null: no clear straggler
    verdict: VerdictPart | None  # null: the profile covers no time
    split: SplitPart
    seconds_by_phase: dict[str, float]  # device time of all operators; collectives include the wait for other ranks
    ranks: tuple[RankPart, ...]
    modules: tuple[ModulePart, ...]
    operators: tuple[OperatorPart, ...]
    graphs: tuple[GraphPart, ...]
    collectives: tuple[CollectivePart, ...]
    named_spans: tuple[NamedSpanPart, ...]  # inner spans after their outer span
    links: tuple[LinkPart, ...]  # the most bytes first


def profile_document(report: RunReport) -> ProfileDocument:
    first = report.ranks[0].profile.metadata
    straggler = report.straggler
    return copy_fields(
        ProfileDocument,
        report,
        first,
        schema_version=SCHEMA_VERSION,
        steps_total=report.step_count,
        flop_total=report.flops,
        waited_for_rank=None if straggler is None else straggler.number,
        verdict=verdict_part(find_verdict(profile_evidence(report))),
        split=_split_part(report.split),
        seconds_by_phase=_named_seconds(report.seconds_by_phase),
        ranks=tuple(map(_rank_part, report.ranks, report.topology.ranks)),
        modules=tuple(ModulePart(use.name or None, _named_seconds(use.seconds), use.flops) for use in report.modules),
        operators=tuple(map(_operator_part, report.operators)),
        graphs=tuple(map(_graph_part, report.graphs)),
        collectives=tuple(
            CollectivePart(use.name, use.count, use.seconds, use.bytes, tuple(use.seconds_by_rank))
            for use in report.collectives
        ),
        named_spans=tuple(copy_fields(NamedSpanPart, use) for use in report.named_spans),
        links=tuple(map(_link_part, report.topology.links)),
    )


def profile_json(report: RunReport) -> str:
    """Returns the report on a profile as JSON without a final newline."""
    return json_text(asdict(profile_document(report)), indent=2)


def line_text(place: SourceLine | None) -> str | None:
    """Formats a source line with its full path; None if the line is unknown."""
    return None if place is None else str(place)


def verdict_part(verdict: RunVerdict | None) -> VerdictPart | None:
    if verdict is None:
        return None
    causes = tuple(
        CausePart(each.bound, each.text, each.seconds, each.ratio, line_text(each.place), each.next_step or None)
        for each in verdict.causes
    )
    return VerdictPart(verdict.bound, verdict.ratio, causes)


def _named_seconds(seconds: Mapping[Phase, float]) -> dict[str, float]:
    return {phase.value: time for phase, time in seconds.items()}


def _split_part(split: TimeSplit) -> SplitPart:
    return copy_fields(SplitPart, split)


def _link_part(link: LinkUse) -> LinkPart:
    source, target = link.source, link.target
    return LinkPart(link.kind, source.host, source.device, target.host, target.device, link.bytes)


def _rank_part(rank: RankReport, place: RankPlace) -> RankPart:
    metadata, state, times = rank.profile.metadata, rank.profile.state, rank.times
    return copy_fields(
        RankPart,
        rank,
        metadata,
        state,
        rank=rank.number,
        devices=place.devices,
        began_at=_moment(metadata.began_ns),
        is_damaged=rank.profile.is_damaged,
        steps_total=len(rank.profile.steps),
        step_mean_seconds=None if times is None else times.mean_seconds,
        step_p50_seconds=None if times is None else times.p50_seconds,
        step_p99_seconds=None if times is None else times.p99_seconds,
        step_longest_seconds=None if times is None else times.longest_seconds,
        first_step=None if rank.first_step is None else _slow_step_part(rank.first_step),
        slowest_steps=tuple(map(_slow_step_part, rank.slowest)),
        split=_split_part(rank.split),
        executions_total=sum(rank.profile.graph_totals.column("executions")),
        flop_total=rank.flops,
        peak=None if rank.peak is None else _peak_part(rank.peak),
    )


def _slow_step_part(slow: SlowStep) -> SlowStepPart:
    return SlowStepPart(slow.step, _split_part(slow.split))


def _peak_part(peak: MemoryPeak) -> PeakPart:
    shares = tuple(
        copy_fields(
            ShareOfMemory,
            share,
            line=line_text(share.place),
            function=None if share.place is None else share.place.function,
        )
        for share in peak.shares
    )
    return PeakPart(peak.core, _moment(peak.at_ns), peak.bytes, peak.highest_bytes, peak.by_category, shares)


def _operator_part(use: OperatorUse) -> OperatorPart:
    return copy_fields(
        OperatorPart,
        use,
        engine=ENGINE_NAMES[use.engine],
        line=line_text(use.place),
        result=use.main_result,
        flop_total=use.flops,
        bytes_total=use.bytes,
        seconds_by_rank=tuple(use.seconds_by_rank),
    )


def _graph_part(use: GraphUse) -> GraphPart:
    return copy_fields(
        GraphPart,
        use,
        hash=use.hash_text,
        line=line_text(use.place),
        executions_total=use.executions,
        failures_total=use.failures,
    )


def _moment(at_ns: int) -> str | None:
    """Formats a Unix time in nanoseconds as RFC 3339; None if it is out of range."""
    try:
        return datetime.fromtimestamp(at_ns / NS_PER_SECOND, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def profile_csv_lines(report: RunReport, table: str) -> Iterator[str]:
    """Yields the CSV lines of one table of the report, header first. `table` is one of CSV_TABLES.

    Unknown values are empty.
    """
    if table == "steps":
        yield from _step_lines(report)
        return
    whole = profile_document(report)
    kinds: dict[str, tuple[Iterable[Any], tuple[str, ...]]] = {
        "operators": (whole.operators, _csv_columns(OperatorPart)),
        "graphs": (whole.graphs, _csv_columns(GraphPart)),
        "ranks": (whole.ranks, _RANK_CSV_COLUMNS),
    }
    rows, columns = kinds[table]
    yield csv_line(name.removeprefix("split.") for name in columns)
    for row in rows:
        yield csv_line(_cell(attrgetter(name)(row)) for name in columns)


def _csv_columns(kind: type[OperatorPart | GraphPart]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "seconds_by_rank")


def _step_lines(report: RunReport) -> Iterator[str]:
    parts = [name.removesuffix("_ns") + "_seconds" for name in _STEP_CSV_COLUMNS]
    yield csv_line(["rank", "step", "total_seconds", "host_seconds", *parts, "executions", "flop_total"])
    for rank in report.ranks:
        for row in rank.profile.steps:
            times = (row.duration_ns, row.host_ns, *(getattr(row, name) for name in _STEP_CSV_COLUMNS))
            seconds = [time / NS_PER_SECOND for time in times]
            yield csv_line([rank.number, row.step, *seconds, row.executions, row.flops])


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return foreign_cell(value) if isinstance(value, str) else value
