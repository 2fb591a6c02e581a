"""Executed operators by line of the script and by module, and executed graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from neurontools.profile import Engine, GraphDefinition, OperatorDefinition, Profile, SourceLine
from neurontools.profile.analysis.steps import NS_PER_SECOND
from neurontools.profile.definitions import Phase, script_line

UNKNOWN_LINE = "no line known"


@dataclass(slots=True)
class OperatorUse:
    """An operator of one line of the script: the sum of all executions by all ranks."""

    name: str
    engine: Engine
    place: SourceLine | None  # line of the script; None if unknown
    is_backward: bool  # whether the operator computes the gradient of an operator at `place`
    count: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    results: dict[str, float] = field(default_factory=dict)  # seconds of execution by layout of the first result
    seconds_by_rank: list[float] = field(default_factory=list)  # seconds of executions by each rank, in order

    @property
    def main_result(self) -> str:
        """The result layout on which executions spent the most time."""
        return max(self.results, key=self.results.__getitem__, default="")


def executed_operators(profile: Profile) -> Iterator[tuple[OperatorDefinition, int, int, int]]:
    """Yields executed operators. Each has its number of executions, their total and longest time in nanoseconds."""
    counts = {row.graph: row.executions for row in profile.graph_totals}
    times = {row.operator: (row.total_ns, row.longest_ns) for row in profile.operator_totals}
    for number, operator in enumerate(profile.operators):
        count = counts.get(operator.graph, 0)
        if count or number in times:
            yield operator, count, *times.get(number, (0, 0))


def largest_uses(
    uses: Sequence[OperatorUse], quantity: Callable[[OperatorUse], float], most: int
) -> tuple[OperatorUse, ...]:
    """Returns the operators with the highest values of a quantity, in descending order; omits zeros."""
    return tuple(sorted((use for use in uses if quantity(use) > 0), key=lambda use: -quantity(use))[:most])


def seconds_by_engine(uses: Sequence[OperatorUse]) -> dict[Engine, float]:
    """Sums the time of operators by engine, the longest first; omits engines without time."""
    found: dict[Engine, float] = {}
    for use in uses:
        found[use.engine] = found.get(use.engine, 0.0) + use.seconds
    return dict(sorted(((engine, time) for engine, time in found.items() if time > 0), key=lambda each: -each[1]))


@dataclass(slots=True)
class ModuleUse:
    """The operators of one module of the model, or of an optimizer: the sum of all executions by all ranks.

    `name` is the path of class names, such as Bert/Encoder/Linear; "" for operators outside of modules. The module
    below a module has its own entry.
    """

    name: str
    seconds: dict[Phase, float] = field(default_factory=dict)
    flops: int = 0

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class OperatorSums:
    """All executions of operators by all ranks, summed by line, by module and by phase; the longest come first."""

    operators: tuple[OperatorUse, ...]
    modules: tuple[ModuleUse, ...]
    ns_by_phase: dict[Phase, Counter[SourceLine | None]]  # nanoseconds by line of the script; None if unknown


def sum_operators(profiles: Sequence[Profile]) -> OperatorSums:
    """Sums the executions of operators, in one pass over the profiles."""
    uses: dict[tuple[str, Engine, SourceLine | None, bool], OperatorUse] = {}
    modules: dict[str, ModuleUse] = {}
    phases: dict[Phase, Counter[SourceLine | None]] = {}
    for number, profile in enumerate(profiles):
        for operator, count, total_ns, longest_ns in executed_operators(profile):
            place = script_line(profile.stack(operator.stack))
            key = (operator.name, operator.engine, place, operator.is_backward)
            use = uses.get(key)
            if use is None:
                use = uses[key] = OperatorUse(*key, seconds_by_rank=[0.0] * len(profiles))
            seconds = total_ns / NS_PER_SECOND
            use.count += count
            use.seconds += seconds
            use.longest_seconds = max(use.longest_seconds, longest_ns / NS_PER_SECOND)
            use.flops += count * operator.flops
            use.bytes += count * operator.bytes
            use.results[operator.result] = use.results.get(operator.result, 0.0) + seconds
            use.seconds_by_rank[number] += seconds
            module = modules.setdefault(operator.scope, ModuleUse(operator.scope))
            module.seconds[operator.phase] = module.seconds.get(operator.phase, 0.0) + seconds
            module.flops += count * operator.flops
            phases.setdefault(operator.phase, Counter())[place] += total_ns
    return OperatorSums(
        operators=tuple(sorted(uses.values(), key=lambda use: (-use.seconds, use.name, str(use.place)))),
        modules=tuple(sorted(modules.values(), key=lambda use: (-use.total_seconds, use.name))),
        ns_by_phase=dict(sorted(phases.items(), key=lambda each: -each[1].total())),
    )


@dataclass(slots=True)
class FlameFrame:
    """A node of the flame graph: a module, a line in it, or an operator of that line."""

    name: str
    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    below: dict[str, FlameFrame] = field(default_factory=dict)

    def child(self, name: str) -> FlameFrame:
        """Returns the child of this name, and creates it if needed."""
        return self.below.setdefault(name, FlameFrame(name))

    def ordered(self) -> list[FlameFrame]:
        """Returns the child frames in descending order of time."""
        return sorted(self.below.values(), key=lambda frame: (-frame.seconds, frame.name))


def build_flame_tree(profiles: Sequence[Profile]) -> FlameFrame:
    """Builds a tree of all operators: by module, then by line of the script, then by name."""
    root = FlameFrame("all operators")
    for profile in profiles:
        for operator, count, total_ns, _ in executed_operators(profile):
            place = script_line(profile.stack(operator.stack))
            line = UNKNOWN_LINE if place is None else source_text(place)
            modules = [name for name in operator.scope.split("/") if name]
            frame = root
            for name in (*modules, f"{line} (backward)" if operator.is_backward else line, operator.name):
                frame = _add_execution(frame, count, total_ns, operator).child(name)
            _add_execution(frame, count, total_ns, operator)
    return root


def source_text(place: SourceLine) -> str:
    """Formats a line of the script as "file:line", without the directory."""
    return f"{place.file.rpartition('/')[2] or place.file}:{place.line}"


def _add_execution(frame: FlameFrame, count: int, total_ns: int, operator: OperatorDefinition) -> FlameFrame:
    frame.seconds += total_ns / NS_PER_SECOND
    frame.flops += count * operator.flops
    frame.bytes += count * operator.bytes
    return frame


@dataclass(slots=True)
class GraphUse:
    """A graph, and the sum of its executions by all ranks."""

    hash_text: str
    module: str
    reason: str  # reason why the graph was compiled
    place: SourceLine | None  # line of the script that executed the graph first; None if unknown
    first_step: int
    operator_count: int
    flops: int  # FLOPs of one execution
    code_bytes: int
    scratchpad_bytes: int
    compile_seconds: float | None  # the longest compilation of all ranks; None if unknown
    was_cached: bool | None  # true if all ranks found the graph in the cache; None if unknown
    executions: int = 0
    failures: int = 0
    seconds: float = 0.0


def graph_uses(profiles: Sequence[Profile]) -> tuple[GraphUse, ...]:
    """Returns all graphs in the order of their first steps. Merges graphs of several ranks that have the same hash."""
    found: dict[str, GraphUse] = {}
    for profile in profiles:
        totals = {row.graph: row for row in profile.graph_totals}
        for number, graph in enumerate(profile.graphs):
            use = found.get(graph.hash_text)
            if use is None:
                use = found[graph.hash_text] = _new_graph_use(profile, graph)
            else:
                _add_load(use, graph)
            row = totals.get(number)
            if row is not None:
                use.executions += row.executions
                use.failures += row.failures
                use.seconds += row.total_ns / NS_PER_SECOND
    return tuple(sorted(found.values(), key=lambda use: use.first_step))


def _new_graph_use(profile: Profile, graph: GraphDefinition) -> GraphUse:
    return GraphUse(
        graph.hash_text,
        graph.module,
        graph.reason,
        script_line(profile.stack(graph.stack)),
        graph.step,
        graph.operator_count,
        graph.flops,
        graph.code_bytes,
        graph.scratchpad_bytes,
        None if graph.compile_ns is None else graph.compile_ns / NS_PER_SECOND,
        graph.was_cached,
    )


def _add_load(use: GraphUse, graph: GraphDefinition) -> None:
    """Merges another load of the same graph, by another rank or onto another core."""
    if graph.compile_ns is not None:
        use.compile_seconds = max(use.compile_seconds or 0.0, graph.compile_ns / NS_PER_SECOND)
    if graph.was_cached is not None:
        use.was_cached = graph.was_cached and use.was_cached is not False
    use.first_step = min(use.first_step, graph.step)
