"""What was compiled, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.profile import Graph, Place, Profile
from neurontools.profile.analysis.steps import NS_PER_SECOND
from neurontools.profile.definitions import script_place


@dataclass(slots=True)
class GraphUse:
    """A graph, and its executions by all ranks."""

    hash_text: str
    module: str
    reason: str  # why there had to be one of its own
    place: Place | None  # the line of the script that executed it first; None: not known
    first_step: int
    operator_count: int
    flops: int  # of one execution
    code_bytes: int
    scratchpad_bytes: int
    compile_seconds: float | None  # the longest of all ranks; None: nobody measured it
    was_cached: bool | None  # by every rank; None: not known
    executions: int = 0
    failures: int = 0
    seconds: float = 0.0


def graph_uses(profiles: Sequence[Profile]) -> tuple[GraphUse, ...]:
    """All graphs, in the order of the steps that they first came in; those of several ranks with one hash are one."""
    found: dict[str, GraphUse] = {}
    for profile in profiles:
        totals = {row.graph: row for row in profile.graph_totals}
        for number, graph in enumerate(profile.graphs):
            use = found.get(graph.hash_text)
            if use is None:
                use = found[graph.hash_text] = _use(profile, graph)
            else:
                _add_load(use, graph)
            row = totals.get(number)
            if row is not None:
                use.executions += row.executions
                use.failures += row.failures
                use.seconds += row.total_ns / NS_PER_SECOND
    return tuple(sorted(found.values(), key=lambda use: use.first_step))


def _use(profile: Profile, graph: Graph) -> GraphUse:
    return GraphUse(
        graph.hash_text,
        graph.module,
        graph.reason,
        script_place(profile.stack(graph.stack)),
        graph.step,
        graph.operator_count,
        graph.flops,
        graph.code_bytes,
        graph.scratchpad_bytes,
        None if graph.compile_ns is None else graph.compile_ns / NS_PER_SECOND,
        graph.was_cached,
    )


def _add_load(use: GraphUse, graph: Graph) -> None:
    """The same graph, loaded once more: by another rank, or onto another core."""
    if graph.compile_ns is not None:
        use.compile_seconds = max(use.compile_seconds or 0.0, graph.compile_ns / NS_PER_SECOND)
    if graph.was_cached is not None:
        use.was_cached = graph.was_cached and use.was_cached is not False
    use.first_step = min(use.first_step, graph.step)
