"""The evidence of a verdict from a JSON summary of neuron-run, as `profile_evidence` collects it from a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neurontools.estimate.advice import parse_call_sites
from neurontools.estimate.counted_run import EstimateError, parse_number, parse_ranks
from neurontools.profile import SourceLine
from neurontools.profile.analysis.evidence import EventKind, LineEvents, RankEvidence, RunEvidence
from neurontools.profile.analysis.steps import TimeSplit
from neurontools.profile.analysis.verdict import RunVerdict, find_verdict
from neurontools.profile.definitions import Phase

_KINDS = {
    "input": EventKind.INPUT_WAIT,
    "copy": EventKind.COPY,
    "read": EventKind.READ,
    "result read": EventKind.READ,
    "graph": EventKind.GRAPH,
}
_SPLIT_FIELDS = ("total", "host", "compile", "input_wait", "transfer", "compute", "collective")


def summary_verdict(document: Mapping[str, Any]) -> RunVerdict | None:
    """Returns the verdict on the run of a summary. Returns None if the summary has no step after the first one."""
    try:
        ranks = [(rank, split) for rank in parse_ranks(document) if isinstance(split := rank.get("split"), dict)]
        evidence = [_rank_evidence(rank, split) for rank, split in ranks]
        if not evidence:
            return None
        changes = ranks[0][0].get("graph_changes") or [""]
        transferring = sum(_transfer_seconds(rank, each) for (rank, _), each in zip(ranks, evidence, strict=True))
        computing = sum(each.split.compute_seconds for each in evidence) - transferring
        executed: list[tuple[Phase | None, float, None]] = [(None, computing, None)]
        if transferring:
            executed.append((Phase.COLLECTIVES, transferring, None))
        steps_total = max(int(parse_number(rank, "steps_total")) for rank, _ in ranks)
    except EstimateError:
        return None
    return find_verdict(RunEvidence(tuple(evidence), steps_total, str(changes[-1]), tuple(executed)))


def _rank_evidence(rank: Mapping[str, Any], split: Mapping[str, Any]) -> RankEvidence:
    steps = int(parse_number(split, "steps_total"))
    times = TimeSplit(*(parse_number(split, f"{name}_seconds") for name in _SPLIT_FIELDS))
    delay, training = parse_number(rank, "training_run_delay_seconds"), parse_number(rank, "training_seconds")
    lines = tuple(_line_events(rank, steps))
    number = int(parse_number(rank, "rank"))
    return RankEvidence(number, steps, times, lines, min(1.0, delay / training) if training else None)


def _transfer_seconds(rank: Mapping[str, Any], evidence: RankEvidence) -> float:
    """Returns the time of collectives without waiting for other ranks, which the split counts as compute."""
    ratio = evidence.steps / max(1.0, parse_number(rank, "steps_total"))
    waited, computed = evidence.split.collective_seconds, evidence.split.compute_seconds
    return min(max(0.0, parse_number(rank, "collective_seconds") * ratio - waited), computed)


def _line_events(rank: Mapping[str, Any], steps: int) -> Iterator[LineEvents]:
    """Yields the events of a rank by line. Scales their counts and times to the steps that the split covers."""
    ratio = steps / max(1.0, parse_number(rank, "steps_total"))
    found: dict[tuple[EventKind, SourceLine], LineEvents] = {}
    for site in parse_call_sites(rank.get("places")):
        kind = _KINDS.get(site.event)
        if kind is None:
            continue
        place = SourceLine(site.file, site.line, "")
        line = found.setdefault((kind, place), LineEvents(kind, place))
        line.count += site.count if kind is EventKind.GRAPH else site.count * ratio
        line.seconds += site.seconds * ratio
        line.steps += site.steps
        line.late_steps = (*line.late_steps, *site.late_steps)
    yield from found.values()
