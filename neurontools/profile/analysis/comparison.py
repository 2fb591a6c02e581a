"""The comparison of two runs. Times and counts are per step and rank, because runs differ in length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from neurontools.profile import Engine, SourceLine
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.operators import GraphUse, OperatorUse
from neurontools.profile.analysis.report import RankReport, RunReport
from neurontools.profile.analysis.verdict import Cause, find_verdict


class QuantityUnit(Enum):
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    FLOPS = "flops"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class ReportQuantity:
    """A number that comparisons show. `compute` reads it from a report, and `name` ends with its unit."""

    name: str
    title: str
    unit: QuantityUnit
    compute: Callable[[RunReport], float | None]


@dataclass(frozen=True, slots=True)
class QuantityDifference:
    """The values of a quantity in both runs, `a` and `b`; None means unknown."""

    quantity: ReportQuantity
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """`b` divided by `a`; None if `a` is 0 or a value is unknown."""
        return self.b / self.a if self.a and self.b is not None else None


@dataclass(frozen=True, slots=True)
class OperatorDifference:
    """An operator of one function of the script in both runs. Values are per step and rank.

    The values of a run without this operator are None. Operators are matched by function, because line numbers change.
    `place` is the operator's line in run b, or in run a if run b lacks the operator.
    """

    name: str
    engine: Engine
    place: SourceLine | None
    is_backward: bool
    a_seconds: float | None
    b_seconds: float | None
    a_count: float | None
    b_count: float | None
    a_flops: float | None
    b_flops: float | None

    @property
    def change_seconds(self) -> float:
        """The number of seconds by which the operator is slower in run b than in run a."""
        return (self.b_seconds or 0.0) - (self.a_seconds or 0.0)


@dataclass(frozen=True, slots=True)
class FollowedAdvice:
    """A cause of run a with a next step, and the result in run b.

    Following it saves at most `cause.seconds` of a step. `saved_seconds` is the time of a step that the cause's part of
    it lost; negative if the part takes longer in run b.
    """

    cause: Cause
    saved_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    a: RunReport
    b: RunReport
    advice: tuple[FollowedAdvice, ...]  # by predicted saving, largest first
    quantities: tuple[QuantityDifference, ...]
    operators: tuple[OperatorDifference, ...]  # sorted by the absolute change of their time, largest first
    only_a_graphs: tuple[GraphUse, ...]
    only_b_graphs: tuple[GraphUse, ...]


def compare(a: RunReport, b: RunReport) -> Comparison:
    a_hashes, b_hashes = ({graph.hash_text for graph in each.graphs} for each in (a, b))
    return Comparison(
        a,
        b,
        _followed_advice(a, b),
        tuple(QuantityDifference(quantity, quantity.compute(a), quantity.compute(b)) for quantity in QUANTITIES),
        _operator_differences(a, b),
        tuple(graph for graph in a.graphs if graph.hash_text not in b_hashes),
        tuple(graph for graph in b.graphs if graph.hash_text not in a_hashes),
    )


def _followed_advice(a: RunReport, b: RunReport) -> tuple[FollowedAdvice, ...]:
    verdict = find_verdict(profile_evidence(a))
    if verdict is None or not (a.has_steps and b.has_steps):
        return ()
    before, after = (
        {name: seconds / report.split_steps for name, seconds in report.split.parts()} for report in (a, b)
    )
    return tuple(
        FollowedAdvice(cause, before[cause.part] - after[cause.part]) for cause in verdict.causes if cause.next_step
    )


def _total_executed_steps(report: RunReport) -> float:
    """Returns the number of steps in which operators were executed, summed over all ranks; at least 1."""
    return max(1.0, sum(map(_executed_steps, report.ranks)))


def _executed_steps(rank: RankReport) -> float:
    """Returns the number of executed steps of a rank, with fractions of steps that the profile has only in part."""
    steps = rank.profile.steps
    count = len(steps)
    if not count or steps.column("step")[0] == 1:
        return count
    executed, in_steps = sum(rank.profile.graph_totals.column("executions")), sum(steps.column("executions"))
    is_partial = 0 < in_steps < executed <= in_steps * (count + 2) / count
    return count * executed / in_steps if is_partial else count


def _highest_of_ranks(field: str) -> Callable[[RunReport], float | None]:
    """Returns a function that computes the highest value of a field of StepPercentiles over all ranks."""
    return lambda report: max(
        (getattr(rank.times, field) for rank in report.ranks if rank.times is not None), default=None
    )


def _part_per_step(name: str, title: str, field: str = "") -> ReportQuantity:
    """Returns a quantity: the seconds per step in a field of TimeSplit, by default the field called `name`."""
    read = attrgetter(f"split.{field or name}")
    return ReportQuantity(name, title, QuantityUnit.SECONDS, lambda report: read(report) / report.split_steps)


def _flops_per_step(report: RunReport) -> float:
    return sum(rank.split_flops for rank in report.ranks) / report.split_steps


def _compiled_graphs(report: RunReport) -> int:
    return sum(graph.was_cached is False for graph in report.graphs)


QUANTITIES = (
    ReportQuantity("ranks", "ranks", QuantityUnit.COUNT, lambda report: len(report.ranks)),
    ReportQuantity("steps_total", "steps", QuantityUnit.COUNT, lambda report: report.step_count),
    ReportQuantity("step_p50_seconds", "step, p50", QuantityUnit.SECONDS, _highest_of_ranks("p50_seconds")),
    ReportQuantity("step_p99_seconds", "step, p99", QuantityUnit.SECONDS, _highest_of_ranks("p99_seconds")),
    _part_per_step("step_mean_seconds", "step, mean", "total_seconds"),
    _part_per_step("input_wait_seconds", "input wait"),
    _part_per_step("host_seconds", "host tracing"),
    _part_per_step("compile_seconds", "compile"),
    _part_per_step("transfer_seconds", "transfer"),
    _part_per_step("compute_seconds", "execute"),
    _part_per_step("collective_seconds", "collectives"),
    ReportQuantity("busy_ratio", "NeuronCores busy", QuantityUnit.RATIO, lambda report: report.split.busy_ratio),
    ReportQuantity("mfu_ratio", "MFU", QuantityUnit.RATIO, lambda report: report.mfu_ratio),
    ReportQuantity("flops", "FLOP", QuantityUnit.FLOPS, _flops_per_step),
    ReportQuantity("hbm_peak_bytes", "HBM peak", QuantityUnit.BYTES, lambda report: report.highest.hbm_peak_bytes),
    ReportQuantity("graphs", "graphs", QuantityUnit.COUNT, lambda report: len(report.graphs)),
    ReportQuantity("graphs_compiled", "graphs compiled", QuantityUnit.COUNT, _compiled_graphs),
)


@dataclass(slots=True)
class _OperatorSum:
    use: OperatorUse
    seconds: float = 0.0
    count: float = 0.0
    flops: float = 0.0


_OperatorKey = tuple[str, str, str, bool]


def _operator_differences(a: RunReport, b: RunReport) -> tuple[OperatorDifference, ...]:
    one, other = _sum_by_function(a), _sum_by_function(b)
    found = [_operator_difference(one.get(key), other.get(key), each.use) for key, each in {**one, **other}.items()]
    return tuple(sorted(found, key=lambda each: (-abs(each.change_seconds), each.name, str(each.place))))


def _sum_by_function(report: RunReport) -> dict[_OperatorKey, _OperatorSum]:
    """Returns the times and counts of operators per step and rank, by operator name and function of the script."""
    steps = _total_executed_steps(report)
    found: dict[_OperatorKey, _OperatorSum] = {}
    for use in report.operators:
        file, function = ("", "") if use.place is None else (use.place.file.rpartition("/")[2], use.place.function)
        total = found.setdefault((use.name, file, function, use.is_backward), _OperatorSum(use))
        total.seconds += use.seconds / steps
        total.count += use.count / steps
        total.flops += use.flops / steps
    return found


def _operator_difference(a: _OperatorSum | None, b: _OperatorSum | None, use: OperatorUse) -> OperatorDifference:
    sums = {
        f"{run}_{name}": None if total is None else getattr(total, name)
        for run, total in (("a", a), ("b", b))
        for name in ("seconds", "count", "flops")
    }
    return OperatorDifference(use.name, use.engine, use.place, use.is_backward, **sums)
