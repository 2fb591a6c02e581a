"""The verdict on a run: which causes take the time of a training step, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from neurontools.profile import SourceLine
from neurontools.profile.analysis.evidence import EventKind, LineEvents, RankEvidence, RunEvidence, sum_lines
from neurontools.profile.analysis.operators import source_text
from neurontools.profile.analysis.report import straggler_index
from neurontools.profile.analysis.steps import add_splits
from neurontools.profile.definitions import WARM_UP_STEPS, Phase
from neurontools.util.units import counted, percent_text

LEAST_CAUSE_RATIO = 0.01
"""Causes that take a smaller share of the time are left out, unless a count is their evidence."""

LEAST_ACTION_RATIO = 0.1
"""Causes with a smaller share of the time have no next step: xprof's threshold for an input-bound step."""

LEAST_ADVICE_SECONDS = 20e-3
"""The least time per step for which a time of the CPU is advice: a busy CPU alone can cause shorter ones."""

READS_PER_STEP = 0.5
"""PyTorch/XLA's metrics analysis reports more transfers from the device per step than this."""

STEPS_PER_LATE_GRAPH = 50
"""A training that compiles a new graph more often than once in so many steps compiles too often."""

LEAST_LATE_GRAPHS = 3
"""One line has to make so many late graphs: evaluations may add a few."""

IMBALANCE_RATIO = 1.5
"""The work of the slowest rank, divided by that of the fastest: SageMaker's rule LoadBalancing."""

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

    `seconds` is per step, or of the whole run if it has no steps. `ratio` is its share of that time. `part` is the
    part of a step that has this time, one of PART_NAMES. `place` is the line of the script with the largest share; None
    if unknown. `next_step` is "" if nothing is to be done. `rule` is the rule of advice that applies, "" if none does.
    """

    bound: Bound
    part: str
    text: str
    seconds: float
    ratio: float
    place: SourceLine | None
    next_step: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The causes in descending order of their time, and the kind of work that takes most of it."""

    bound: Bound
    ratio: float  # share of the time that work of kind `bound` takes
    causes: tuple[Cause, ...]
    has_steps: bool

    @property
    def text(self) -> str:
        """The verdict as a sentence: "input-bound, 62% of a step: 61.8% waiting for the data loader (train.py:35)"."""
        causes = (
            f"{percent_text(cause.ratio, 1)} {cause.text}"
            f"{'' if cause.place is None else f' ({source_text(cause.place)})'}"
            for cause in self.causes
            if cause.ratio >= LEAST_CAUSE_RATIO or cause.rule
        )
        return f"{self.bound}, {percent_text(self.ratio, 0)} of {self.unit}: {' · '.join(causes)}"

    @property
    def unit(self) -> str:
        """The time whose shares the causes have."""
        return "a step" if self.has_steps else "the time"


def find_verdict(evidence: RunEvidence) -> RunVerdict | None:
    """Derives the verdict on a run. Returns None if its evidence covers no time."""
    found = _Finder(evidence)
    if found.split.total_seconds <= 0:
        return None
    causes = sorted(found.causes(), key=lambda cause: -cause.seconds)
    shares = dict.fromkeys(Bound, 0.0)
    for cause in causes:
        shares[cause.bound] += cause.ratio
    bound = max(shares, key=shares.__getitem__)
    shown = tuple(cause for cause in causes if cause.ratio >= LEAST_CAUSE_RATIO or cause.next_step)
    return RunVerdict(bound, shares[bound], shown, has_steps=any(rank.steps for rank in evidence.ranks))


class _Finder:
    """Derives the causes of the duration of a step from the evidence of a run."""

    def __init__(self, evidence: RunEvidence) -> None:
        self.split = add_splits(rank.split for rank in evidence.ranks)
        self._evidence = evidence
        self._ranks = evidence.ranks
        self._steps = max(1, sum(rank.steps for rank in evidence.ranks))

    def causes(self) -> Iterator[Cause]:
        split = self.split
        yield self._input_wait()
        yield self._rank_wait()
        yield self._compile()
        yield from self._transfers()
        needs_action = self._needs_action(split.host_seconds)
        yield self._cause(
            Bound.HOST,
            "host tracing",
            "host code: Python, and tracing the script",
            split.host_seconds,
            None,
            LARGER_EXECUTIONS if needs_action else "",
        )
        for phase, seconds, line in self._evidence.executed:
            bound = Bound.COMMUNICATION if phase is Phase.COLLECTIVES else Bound.COMPUTE
            yield self._cause(bound, "execute", _phase_text(phase), seconds, line)

    def _cause(
        self,
        bound: Bound,
        part: str,
        text: str,
        seconds: float,
        place: SourceLine | None,
        next_step: str = "",
        rule: str = "",
    ) -> Cause:
        return Cause(
            bound, part, text, seconds / self._steps, seconds / self.split.total_seconds, place, next_step, rule
        )

    def _needs_action(self, seconds: float) -> bool:
        return seconds >= LEAST_ACTION_RATIO * self.split.total_seconds

    def _main_line(self, kind: EventKind) -> SourceLine | None:
        lines = sum_lines(self._ranks, kind)
        return lines[0].place if lines else None

    def _input_wait(self) -> Cause:
        """Advice leaves out the share of the wait for which other processes kept the CPUs busy."""
        waited = self.split.input_wait_seconds
        own = sum(rank.split.input_wait_seconds * (1 - (rank.run_delay_ratio or 0.0)) for rank in self._ranks)
        is_advice = self._needs_action(own) and own >= LEAST_ADVICE_SECONDS * self._steps
        return self._cause(
            Bound.INPUT,
            "input wait",
            "waiting for the data loader",
            waited,
            self._main_line(EventKind.INPUT_WAIT),
            LOAD_AHEAD if self._needs_action(waited) else "",
            "loader-wait" if is_advice else "",
        )

    def _rank_wait(self) -> Cause:
        waited = self.split.collective_seconds
        text, rule = "ranks waiting for each other in collectives", ""
        next_step = "reduce less often: gradient accumulation, larger buckets, or a larger batch per rank"
        ratios = [rank.split.ratio(rank.split.collective_seconds) for rank in self._ranks]
        straggler = straggler_index(ratios)
        if straggler is not None:
            slow = self._ranks[straggler]
            part, seconds = _excess(slow, self._ranks)
            reason = "" if part is None else f": it has {1e3 * seconds:.1f} ms more {part} a step"
            text = f"ranks waiting for rank {slow.rank}{reason}"
            next_step = f"give rank {slow.rank} the same work as the others, and look at its host"
            work = [_work_seconds(rank) for rank in self._ranks]
            fastest = min(work)
            if work[straggler] >= max(IMBALANCE_RATIO * fastest, fastest + LEAST_ADVICE_SECONDS):
                rule = "load-imbalance"
        if not self._needs_action(waited):
            next_step = rule = ""
        return self._cause(Bound.COMMUNICATION, "collectives", text, waited, None, next_step, rule)

    def _compile(self) -> Cause:
        """Counts only the graphs of the rank with the most new graphs, because the ranks compile the same graphs."""
        lines = max(
            ([line for line in rank.lines if line.kind is EventKind.GRAPH] for rank in self._ranks),
            key=lambda found: sum(line.count for line in found),
        )
        count = sum(line.count for line in lines)
        main = max(lines, key=lambda line: line.count, default=None)
        next_step = ""
        if main is not None and _recompiles(main, self._evidence.steps_total):
            change = self._evidence.graph_change
            next_step = f"{CONSTANT_SHAPES}{f' (in the last graph {change})' if change else ''}"
        text = f"compiling {counted(int(count), 'graph')} after step {WARM_UP_STEPS}"
        return self._cause(
            Bound.COMPILE,
            "compile",
            text if count else "waiting for compiled graphs",
            self.split.compile_seconds,
            None if main is None else main.place,
            next_step,
            "recompile" if next_step else "",
        )

    def _transfers(self) -> Iterator[Cause]:
        """Yields the reads at lines that read in most steps, and the other copies between host and device.

        Reads at other lines are evaluations or logs. Divides the time of transfers in proportion to the events by line,
        whose own times leave out parts such as the launch of an execution that a read waits for.
        """
        regular = {
            line.place
            for rank in self._ranks
            for line in rank.lines
            if line.kind is EventKind.READ and line.steps > READS_PER_STEP * max(1, rank.steps)
        }
        all_reads, copies = (sum_lines(self._ranks, kind) for kind in (EventKind.READ, EventKind.COPY))
        reads = [line for line in all_reads if line.place in regular]
        whole_seconds = sum(line.seconds for line in (*all_reads, *copies))
        read_ratio = sum(line.seconds for line in reads) / whole_seconds if whole_seconds else 0.0
        read_seconds = self.split.transfer_seconds * read_ratio
        if reads:
            count = sum(line.count for line in reads) / self._steps
            place = max(reads, key=lambda line: line.steps).place
            text = f"{count:.1f} host reads a step, each a wait on hardware"
            yield self._cause(Bound.HOST, "transfer", text, read_seconds, place, READ_SELDOM, "host-read")
        copying = self.split.transfer_seconds - read_seconds
        yield self._cause(
            Bound.HOST,
            "transfer",
            "copying between host and device",
            copying,
            copies[0].place if copies else None,
            "copy fewer bytes: create tensors on the device, and move each batch once"
            if self._needs_action(copying)
            else "",
        )


def _phase_text(phase: Phase | None) -> str:
    if phase is None:
        return "executing graphs"
    return "moving data in collectives" if phase is Phase.COLLECTIVES else phase.value


def _recompiles(line: LineEvents, steps_total: int) -> bool:
    """Returns whether a line makes new graphs too often, also in the second half of the steps.

    A loader with a few sizes of batches (buckets) has usually shown all of them in the first half.
    """
    if line.count < LEAST_LATE_GRAPHS or line.count * STEPS_PER_LATE_GRAPH <= steps_total or not line.late_steps:
        return False
    begin = max((WARM_UP_STEPS + steps_total) / 2, line.late_steps[0] - 1)
    recent = sum(step > begin for step in line.late_steps)
    return recent > 1 and recent * STEPS_PER_LATE_GRAPH > steps_total - begin


def _work_seconds(rank: RankEvidence) -> float:
    """Returns the seconds of a step without the wait for other ranks."""
    return max(0.0, rank.split.total_seconds - rank.split.collective_seconds) / max(1, rank.steps)


def _excess(straggler: RankEvidence, ranks: Sequence[RankEvidence]) -> tuple[str | None, float]:
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


def _parts_per_step(rank: RankEvidence) -> dict[str, float]:
    return {_EXCESS_NAMES.get(name, name): seconds / max(1, rank.steps) for name, seconds in rank.split.parts()}
