"""The report on a run: its ranks, operators, graphs, collectives and straggler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from neurontools import catalog
from neurontools.profile import ColumnTable, Engine, Profile, SourceLine, SpanKind, TrainingStep
from neurontools.profile.analysis.memory import MemoryPeak, find_peak
from neurontools.profile.analysis.named_spans import NamedSpanUse, sum_named_spans
from neurontools.profile.analysis.operators import (
    GraphUse,
    ModuleUse,
    OperatorUse,
    executed_operators,
    graph_uses,
    sum_operators,
)
from neurontools.profile.analysis.steps import (
    NS_PER_SECOND,
    SlowStep,
    StepPercentiles,
    TimeSplit,
    add_splits,
    first_step,
    slowest_steps,
    split_of_profile,
    steady_steps,
    step_times,
)
from neurontools.profile.analysis.topology import Topology, find_topology
from neurontools.profile.definitions import Phase

_LEAST_WAIT_RATIO = 0.1  # a straggler waits less than the median rank by at least this share of the time
_SLOWEST_STEPS = 3


@dataclass(slots=True)
class CollectiveUse:
    """One kind of collective, summed over all ranks; times include the wait for other ranks."""

    name: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    seconds_by_rank: list[float] = field(default_factory=list)  # seconds of each rank, in the order of the ranks


def sum_collectives(profiles: Sequence[Profile]) -> tuple[CollectiveUse, ...]:
    """Sums the collectives of graphs and of CPU tensors by name, the longest first."""
    found: dict[str, CollectiveUse] = {}
    for number, profile in enumerate(profiles):
        collectives = [
            (operator.name, count, total_ns, count * operator.bytes)
            for operator, count, total_ns, _ in executed_operators(profile)
            if operator.engine is Engine.COLLECTIVES
        ]
        collectives += [
            (profile.names[row.name], row.spans, row.total_ns, row.bytes)
            for row in profile.span_totals
            if row.kind == SpanKind.COLLECTIVE
        ]
        for name, count, total_ns, size in collectives:
            use = found.setdefault(name, CollectiveUse(name, seconds_by_rank=[0.0] * len(profiles)))
            use.count += count
            use.seconds += total_ns / NS_PER_SECOND
            use.bytes += max(0, size)
            use.seconds_by_rank[number] += total_ns / NS_PER_SECOND
    return tuple(sorted(found.values(), key=lambda use: (-use.seconds, use.name)))


def straggler_index(ratios: Sequence[float | None]) -> int | None:
    """Returns the index of the straggler, given the share of time that each rank spends in collectives.

    The straggler waits least. Returns None if no rank waits clearly less than the others, or if a share is unknown.
    """
    known_ratios = [(ratio, place) for place, ratio in enumerate(ratios) if ratio is not None]
    if len(known_ratios) < 2 or len(known_ratios) < len(ratios):
        return None
    (least, place), *others = sorted(known_ratios)
    middle = others[len(others) // 2][0]
    return place if middle - least >= _LEAST_WAIT_RATIO else None


def latest_run(profiles: Iterable[Profile]) -> list[Profile]:
    """Selects the profiles of the latest run in a directory, ordered by rank.

    Profiles that ended before the last worker began belong to earlier runs. If a rank restarted, selects its latest
    profile.
    """
    listed = list(profiles)
    last_ns = max((profile.metadata.began_ns for profile in listed), default=0)
    found: dict[int, Profile] = {}
    for profile in sorted(listed, key=lambda each: each.metadata.began_ns):
        if profile.metadata.began_ns == last_ns or profile.state.ended_ns >= last_ns:
            found[profile.metadata.rank] = profile
    return [found[rank] for rank in sorted(found)]


@dataclass(frozen=True, slots=True)
class RankReport:
    profile: Profile
    steps: ColumnTable[TrainingStep]  # the steps chosen by `steady_steps`, which the fields below describe
    split: TimeSplit
    times: StepPercentiles | None  # None without steps
    slowest: tuple[SlowStep, ...]
    first_step: SlowStep | None  # first step of the run, with the start-up; None if it is in `steps`
    flops: int  # FLOPs of all executions
    split_flops: int  # FLOPs of the steps in `steps`; of all executions if there are no steps
    flops_per_second: float | None  # `split_flops` per second of `split`
    execution_seconds: float  # device time of all executions
    mfu_ratio: float | None  # model FLOPs utilization, of the bfloat16 peak of the worker's cores; None if unknown
    peak: MemoryPeak | None

    @property
    def number(self) -> int:
        return self.profile.metadata.rank

    @property
    def hbm_peak_bytes(self) -> int | None:
        """The highest HBM peak of the worker's cores; None if unknown."""
        peaks = self.profile.state.hbm_peak_bytes
        return max(peaks) if peaks else None if self.peak is None else self.peak.bytes

    @property
    def incomplete_reason(self) -> str:
        """The reason why the worker's profile is incomplete; "" if it is complete."""
        if self.profile.is_damaged:
            return "is damaged; only its readable part is shown"
        if not self.profile.state.has_ended:
            return "has no regular end (the worker still runs, or died)"
        return ""


@dataclass(frozen=True, slots=True)
class RunReport:
    ranks: tuple[RankReport, ...]  # at least one
    split: TimeSplit  # sum over all ranks
    operators: tuple[OperatorUse, ...]  # the longest first
    modules: tuple[ModuleUse, ...]  # the longest first
    line_ns_by_phase: dict[Phase, Counter[SourceLine | None]]  # nanoseconds of operators by phase and line
    graphs: tuple[GraphUse, ...]  # graphs in the order of their first steps
    collectives: tuple[CollectiveUse, ...]  # the longest first
    named_spans: tuple[NamedSpanUse, ...]  # inner spans after their outer span
    topology: Topology

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return tuple(rank.profile for rank in self.ranks)

    @property
    def step_count(self) -> int:
        """The number of steps of the rank with the most steps."""
        return max(len(rank.profile.steps) for rank in self.ranks)

    @property
    def has_steps(self) -> bool:
        return any(len(rank.steps) for rank in self.ranks)

    @property
    def flops(self) -> int:
        return sum(rank.flops for rank in self.ranks)

    @property
    def flops_per_second(self) -> float | None:
        """The sum of the FLOPS of all ranks; None if the FLOPS of a rank are unknown."""
        rates = [rank.flops_per_second for rank in self.ranks if rank.flops_per_second is not None]
        return sum(rates) if len(rates) == len(self.ranks) else None

    @property
    def seconds_by_phase(self) -> dict[Phase, float]:
        """The device time of all operators by phase, longest first. Collectives include the wait for ranks."""
        totals = {phase: lines.total() / NS_PER_SECOND for phase, lines in self.line_ns_by_phase.items()}
        return {phase: seconds for phase, seconds in totals.items() if seconds > 0}

    @property
    def split_steps(self) -> int:
        """The number of steps that `split` covers, summed over all ranks; 1 if no rank has steps."""
        return max(1, sum(len(rank.steps) for rank in self.ranks))

    @property
    def mfu_ratio(self) -> float | None:
        """The mean MFU of all ranks; None if the MFU of a rank is unknown."""
        ratios = [rank.mfu_ratio for rank in self.ranks if rank.mfu_ratio is not None]
        return sum(ratios) / len(ratios) if len(ratios) == len(self.ranks) else None

    @property
    def highest(self) -> RankReport:
        """The rank with the highest HBM peak."""
        return max(self.ranks, key=lambda rank: rank.hbm_peak_bytes or 0)

    @property
    def straggler(self) -> RankReport | None:
        """The rank that the others wait for in collectives; None if no rank is clearly slower."""
        place = straggler_index([rank.split.ratio(rank.split.collective_seconds) for rank in self.ranks])
        return None if place is None else self.ranks[place]


def build_report(profiles: Sequence[Profile]) -> RunReport:
    """Builds the report on a run from the profiles of its workers, at least one."""
    ranks = tuple(map(_rank, profiles))
    sums = sum_operators(profiles)
    return RunReport(
        ranks=ranks,
        split=add_splits(rank.split for rank in ranks),
        operators=sums.operators,
        modules=sums.modules,
        line_ns_by_phase=sums.ns_by_phase,
        graphs=graph_uses(profiles),
        collectives=sum_collectives(profiles),
        named_spans=sum_named_spans(profiles),
        topology=find_topology(profiles),
    )


def _rank(profile: Profile) -> RankReport:
    split, steps = split_of_profile(profile), steady_steps(profile)
    flops = sum(profile.graphs[row.graph].flops * row.executions for row in profile.graph_totals)
    steps_flops = sum(steps.column("flops")) if len(steps) else flops
    return RankReport(
        profile=profile,
        steps=steps,
        split=split,
        times=step_times(steps),
        slowest=slowest_steps(steps, _SLOWEST_STEPS),
        first_step=first_step(profile),
        flops=flops,
        split_flops=steps_flops,
        flops_per_second=steps_flops / split.total_seconds if split.total_seconds > 0 else None,
        execution_seconds=sum(profile.graph_totals.column("total_ns")) / NS_PER_SECOND,
        mfu_ratio=_mfu_ratio(profile, steps_flops, split),
        peak=find_peak(profile),
    )


def _mfu_ratio(profile: Profile, flops: int, split: TimeSplit) -> float | None:
    """Returns the FLOPs as a share of those that the cores can execute at their peak rate in the time of `split`."""
    about = profile.metadata
    instance_type, cores, lnc = about.instance_type, len(about.cores), about.logical_neuroncore_config
    most = None if instance_type is None else catalog.peak_flops_per_logical_core(instance_type, lnc)
    if most is None or not cores or split.total_seconds <= 0:
        return None
    return flops / (most * cores * split.total_seconds)
