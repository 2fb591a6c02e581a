"""The report on a run: its ranks, and what they did together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from neurontools import catalog
from neurontools.profile import ColumnTable, Engine, Profile, SpanKind, TrainingStep
from neurontools.profile.analysis.memory import MemoryPeak, find_peak
from neurontools.profile.analysis.operators import GraphUse, OperatorUse, executed_operators, graph_uses, operator_uses
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

_LEAST_WAIT_RATIO = 0.1  # of the time that the others wait more: from there on they wait for somebody


@dataclass(slots=True)
class CollectiveUse:
    """One kind of collective; times include the wait for other ranks."""

    name: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    seconds_by_rank: list[float] = field(default_factory=list)  # in the order of the report's ranks


def sum_collectives(profiles: Sequence[Profile]) -> tuple[CollectiveUse, ...]:
    """Those of graphs and those of CPU tensors, the longest first."""
    found: dict[str, CollectiveUse] = {}
    for number, profile in enumerate(profiles):
        told = [
            (operator.name, count, total_ns, count * operator.bytes)
            for operator, count, total_ns, _ in executed_operators(profile)
            if operator.engine is Engine.COLLECTIVES
        ]
        told += [
            (profile.names[row.name], row.spans, row.total_ns, row.bytes)
            for row in profile.span_totals
            if row.kind == SpanKind.COLLECTIVE
        ]
        for name, count, total_ns, size in told:
            use = found.setdefault(name, CollectiveUse(name, seconds_by_rank=[0.0] * len(profiles)))
            use.count += count
            use.seconds += total_ns / NS_PER_SECOND
            use.bytes += max(0, size)
            use.seconds_by_rank[number] += total_ns / NS_PER_SECOND
    return tuple(sorted(found.values(), key=lambda use: (-use.seconds, use.name)))


def straggler_index(ratios: Sequence[float | None]) -> int | None:
    """Of ranks with these shares of their time in collectives, the place of the one whom the others wait for.

    That is the one that waits least, if the others wait clearly more; None where nobody is clearly slower.
    """
    known = [(ratio, place) for place, ratio in enumerate(ratios) if ratio is not None]
    if len(known) < 2 or len(known) < len(ratios):
        return None
    (least, place), *others = sorted(known)
    middle = others[len(others) // 2][0]
    return place if middle - least >= _LEAST_WAIT_RATIO else None


def latest_run(profiles: Iterable[Profile]) -> list[Profile]:
    """The profiles of the run that began last, by rank.

    Those of an earlier run had ended when the last worker of it began. Of a rank that was started again the latest
    counts.
    """
    listed = list(profiles)
    last_ns = max((profile.metadata.began_ns for profile in listed), default=0)
    found: dict[int, Profile] = {}
    for profile in sorted(listed, key=lambda each: each.metadata.began_ns):
        if profile.metadata.began_ns == last_ns or profile.state.ended_ns >= last_ns:
            found[profile.metadata.rank] = profile
    return [found[rank] for rank in sorted(found)]


_SLOWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class RankReport:
    """One worker of the run."""

    profile: Profile
    steps: ColumnTable[TrainingStep]  # those of `split`, `times` and `slowest`: without the first of the run
    split: TimeSplit
    times: StepPercentiles | None  # None: no step was counted
    slowest: tuple[SlowStep, ...]
    first_step: SlowStep | None  # of the run, with all that came before it; None: it is not there, or is all there is
    flops: int  # of all executions
    split_flops: int  # in the time of `split`
    flops_per_second: float | None  # in the time of `split`
    execution_seconds: float  # of all executions, on the device
    mfu_ratio: float | None  # of the bf16 peak of its cores; None: the peak or the time is not known
    peak: MemoryPeak | None

    @property
    def number(self) -> int:
        """Its rank in the run."""
        return self.profile.metadata.rank

    @property
    def hbm_peak_bytes(self) -> int | None:
        """The most HBM that one of its cores had in use; None: not known."""
        known = self.profile.state.hbm_peak_bytes
        return max(known) if known else None if self.peak is None else self.peak.bytes

    @property
    def trouble(self) -> str:
        """Why its profile is not whole, in a few words; "" where it is."""
        if self.profile.is_damaged:
            return "is damaged; it is shown as far as it can be read"
        if not self.profile.state.has_ended:
            return "has no regular end (still running, or the worker died)"
        return ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What the profiles of a run's workers tell together."""

    ranks: tuple[RankReport, ...]  # at least one
    split: TimeSplit  # of all ranks
    operators: tuple[OperatorUse, ...]  # the longest first
    graphs: tuple[GraphUse, ...]  # in the order of their first steps
    collectives: tuple[CollectiveUse, ...]  # the longest first

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What it was made of."""
        return tuple(rank.profile for rank in self.ranks)

    @property
    def step_count(self) -> int:
        """The steps of the rank that has most."""
        return max(len(rank.profile.steps) for rank in self.ranks)

    @property
    def flops(self) -> int:
        """Of all executions of all ranks."""
        return sum(rank.flops for rank in self.ranks)

    @property
    def flops_per_second(self) -> float | None:
        """The sum over the ranks; None where one's is not known."""
        known = [rank.flops_per_second for rank in self.ranks if rank.flops_per_second is not None]
        return sum(known) if len(known) == len(self.ranks) else None

    @property
    def split_steps(self) -> int:
        """How many steps of all ranks are in `split`; 1 where none was counted, and it is of all the time."""
        return max(1, sum(len(rank.steps) for rank in self.ranks))

    @property
    def mfu_ratio(self) -> float | None:
        """The mean over the ranks; None where one's is not known."""
        known = [rank.mfu_ratio for rank in self.ranks if rank.mfu_ratio is not None]
        return sum(known) / len(known) if len(known) == len(self.ranks) else None

    @property
    def highest(self) -> RankReport:
        """The rank with the highest peak of HBM."""
        return max(self.ranks, key=lambda rank: rank.hbm_peak_bytes or 0)

    @property
    def straggler(self) -> RankReport | None:
        """The rank that the others wait for in collectives; None where nobody is clearly slower."""
        place = straggler_index([rank.split.ratio(rank.split.collective_seconds) for rank in self.ranks])
        return None if place is None else self.ranks[place]


def build_report(profiles: Sequence[Profile]) -> RunReport:
    """The report on the workers of one run, at least one."""
    ranks = tuple(map(_rank, profiles))
    return RunReport(
        ranks=ranks,
        split=add_splits(rank.split for rank in ranks),
        operators=operator_uses(profiles),
        graphs=graph_uses(profiles),
        collectives=sum_collectives(profiles),
    )


def _rank(profile: Profile) -> RankReport:
    split, steps = split_of_profile(profile), steady_steps(profile)
    flops = sum(profile.graphs[row.graph].flops * row.executions for row in profile.graph_totals)
    steps_flops = _flops(profile, steps)
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


def _flops(profile: Profile, steps: ColumnTable[TrainingStep]) -> int:
    """The FLOPs of these steps; where there is none, of all executions."""
    if len(steps):
        return sum(steps.column("flops"))
    return sum(profile.graphs[row.graph].flops * row.executions for row in profile.graph_totals)


def _mfu_ratio(profile: Profile, flops: int, split: TimeSplit) -> float | None:
    """FLOPs over what the cores could have done in that time."""
    about = profile.metadata
    instance_type, cores, lnc = about.instance_type, len(about.cores), about.logical_neuroncore_config
    most = None if instance_type is None else catalog.peak_flops_per_logical_core(instance_type, lnc)
    if most is None or not cores or split.total_seconds <= 0:
        return None
    return flops / (most * cores * split.total_seconds)
