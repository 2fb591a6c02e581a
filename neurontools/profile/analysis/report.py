"""The report on a run: its ranks, and what they did together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools import catalog
from neurontools.profile import Profile, Step, Table
from neurontools.profile.analysis.collectives import CollectiveUse, collective_uses, waited_for
from neurontools.profile.analysis.graphs import GraphUse, graph_uses
from neurontools.profile.analysis.memory import Peak, peak
from neurontools.profile.analysis.operators import OperatorUse, operator_uses
from neurontools.profile.analysis.steps import (
    NS_PER_SECOND,
    SlowStep,
    Split,
    StepTimes,
    add_splits,
    first_step,
    slowest_steps,
    split_of_profile,
    step_times,
    usual_steps,
)

_SLOWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker of the run."""

    profile: Profile
    steps: Table[Step]  # those of `split`, `times` and `slowest`: without the first of the run
    split: Split
    times: StepTimes | None  # None: no step was counted
    slowest: tuple[SlowStep, ...]
    first_step: SlowStep | None  # of the run, with all that came before it; None: it is not there, or is all there is
    flops: int  # of all executions
    split_flops: int  # in the time of `split`
    flops_per_second: float | None  # in the time of `split`
    execution_seconds: float  # of all executions, on the device
    mfu_ratio: float | None  # of the bf16 peak of its cores; None: the peak or the time is not known
    peak: Peak | None

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
class Report:
    """What the profiles of a run's workers tell together."""

    ranks: tuple[Rank, ...]  # at least one
    split: Split  # of all ranks
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
    def highest(self) -> Rank:
        """The rank with the highest peak of HBM."""
        return max(self.ranks, key=lambda rank: rank.hbm_peak_bytes or 0)

    @property
    def waited_for(self) -> Rank | None:
        """The rank that the others wait for in collectives; None where nobody is clearly slower."""
        place = waited_for([rank.split.ratio(rank.split.collective_seconds) for rank in self.ranks])
        return None if place is None else self.ranks[place]


def report(profiles: Sequence[Profile]) -> Report:
    """The report on the workers of one run, at least one."""
    ranks = tuple(map(_rank, profiles))
    return Report(
        ranks=ranks,
        split=add_splits(rank.split for rank in ranks),
        operators=operator_uses(profiles),
        graphs=graph_uses(profiles),
        collectives=collective_uses(profiles),
    )


def _rank(profile: Profile) -> Rank:
    split, steps = split_of_profile(profile), usual_steps(profile)
    flops = sum(profile.graphs[row.graph].flops * row.executions for row in profile.graph_totals)
    steps_flops = _flops(profile, steps)
    return Rank(
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
        peak=peak(profile),
    )


def _flops(profile: Profile, steps: Table[Step]) -> int:
    """The FLOPs of these steps; where there is none, of all executions."""
    if len(steps):
        return sum(steps.column("flops"))
    return sum(profile.graphs[row.graph].flops * row.executions for row in profile.graph_totals)


def _mfu_ratio(profile: Profile, flops: int, split: Split) -> float | None:
    """FLOPs over what the cores could have done in that time."""
    about = profile.metadata
    instance_type, cores, lnc = about.instance_type, len(about.cores), about.logical_neuroncore_config
    most = None if instance_type is None else catalog.peak_flops_per_logical_core(instance_type, lnc)
    if most is None or not cores or split.total_seconds <= 0:
        return None
    return flops / (most * cores * split.total_seconds)
