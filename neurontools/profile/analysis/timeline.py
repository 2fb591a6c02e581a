"""The latest steps of all ranks on one clock: what each did when, on its host and on its NeuronCores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from neurontools.profile import Engine, Kind, Profile

_PART_OF_KIND = {
    Kind.INPUT_WAIT: "input wait",
    Kind.COMPILE: "compile",
    Kind.TO_DEVICE: "transfer",
    Kind.FROM_DEVICE: "transfer",
    Kind.COLLECTIVE: "collectives",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that took time; `part` is one of PART_NAMES."""

    part: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """What happened at one place: on the host of a rank, or on one of its NeuronCores."""

    rank: int
    core: int | None  # None: the host
    pieces: tuple[Piece, ...]  # in their order


@dataclass(frozen=True, slots=True)
class Timeline:
    """A stretch of time, and where its steps begin, by rank."""

    start_ns: int
    end_ns: int
    first_step: int
    last_step: int
    lanes: tuple[Lane, ...]


def latest(profiles: Sequence[Profile], steps: int) -> Timeline | None:
    """The latest so many steps that every rank has; None where there are none, or clocks can't be compared.

    Only workers of one start of one host have one clock (`Metadata.boot_id`).
    """
    if len({profile.metadata.boot_id for profile in profiles}) != 1:
        return None
    ends = [profile.steps.column("step")[-1] for profile in profiles if len(profile.steps)]
    if len(ends) < len(profiles):
        return None
    last = min(ends)
    shown = [[row for row in profile.steps[-_MOST_BEHIND:] if last - steps < row.step <= last] for profile in profiles]
    rows = [row for each in shown for row in each]
    if not all(shown):
        return None
    start, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    lanes = [lane for profile in profiles for lane in _lanes(profile, start, end)]
    return Timeline(start, end, min(row.step for row in rows), last, tuple(lanes))


_MOST_BEHIND = 1000  # steps that a rank can be ahead of another and still be shown beside it


def _lanes(profile: Profile, start_ns: int, end_ns: int) -> Iterator[Lane]:
    on_host: list[Piece] = []
    for row in profile.spans:
        part = _PART_OF_KIND.get(Kind(row.kind))
        if part is not None and row.end_ns > start_ns and row.start_ns < end_ns:
            on_host.append(Piece(part, profile.names[row.name], row.start_ns, row.end_ns))
    rank = profile.metadata.rank
    yield Lane(rank, None, tuple(sorted(on_host, key=lambda piece: piece.start_ns)))
    on_core: dict[int, list[Piece]] = {core: [] for core in profile.metadata.cores}
    ends = accumulate(profile.executions.column("operator_count"))
    for execution, end in zip(profile.executions, ends, strict=True):
        if execution.end_ns > start_ns and execution.start_ns < end_ns:
            times = profile.operator_ns[end - execution.operator_count : end]
            graph = profile.graphs[execution.graph]
            pieces = on_core.setdefault(execution.core, [])
            pieces += _pieces(profile, graph.first_operator, graph.module, times, execution.start_ns, execution.end_ns)
    for core, pieces in on_core.items():
        yield Lane(rank, core, tuple(pieces))


def _pieces(
    profile: Profile, first_operator: int, module: str, times: Sequence[int], start_ns: int, end_ns: int
) -> Iterator[Piece]:
    """An execution as what it computed and its collectives, in their order."""
    begun = at = start_ns
    for number, took in enumerate(times, first_operator):
        operator = profile.operators[number]
        if operator.engine is Engine.COLLECTIVES:
            if at > begun:
                yield Piece("execute", module, begun, at)
            yield Piece("collectives", operator.name, at, at + took)
            begun = at + took
        at += took
    if end_ns > begun:
        yield Piece("execute", module, begun, end_ns)
