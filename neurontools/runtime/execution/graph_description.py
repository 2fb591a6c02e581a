"""Describes graphs for profiles: their operators and engines, their origin, and why a graph is new."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neurontools.profile.definitions import Engine, GraphDefinition, OperatorDefinition, engine_of
from neurontools.runtime.execution.work import work_of
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import flattened
from neurontools.runtime.profiling.ring import GraphEntry, StackTable, ring
from neurontools.runtime.programs.compiled_graph import CompiledGraph, Instruction, ValueUse
from neurontools.runtime.programs.compiler import live_operators
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program
from neurontools.runtime.tensors.buffers import Graph

FIRST_GRAPH = "the first one"


@dataclass(frozen=True, slots=True)
class GraphOrigin:
    """How a program was obtained: the compile time in ns, whether it was cached, and why its graph is new."""

    compile_ns: int
    was_cached: bool
    reason: str


def profiled_graph(program: Program, graph: Graph, alive: bytes, origin: GraphOrigin) -> GraphEntry:
    """Adds a program and its operators to the profile ring and returns the entry. Callers hold the runtime's lock."""
    compiled = program.compiled
    live = live_operators(graph, alive)
    number = len(ring.graphs)
    origins = {index: graph.origins[position] for index, (position, _) in enumerate(live) if position in graph.origins}
    operators = profile_operators(
        compiled, program.numerics, [signature.flops for _, signature in live], origins, ring.stack_table, number
    )
    entry = GraphEntry(number, len(operators))
    entry.output_stacks = output_origins(compiled, operators)
    entry.output_bytes = [compiled.layouts[each].nbytes for each in compiled.outputs]
    first_stack = next((operator.stack for operator in operators if operator.stack is not None), None)
    ring.graphs.append(
        GraphDefinition(
            hash_text=compiled.graph_hash,
            module=compiled.module,
            first_operator=len(ring.operators),
            operator_count=len(operators),
            flops=compiled.flops,
            moved_bytes=work_of(compiled, program.numerics).moved_bytes,
            code_bytes=len(compiled.to_json()),
            scratchpad_bytes=compiled.scratchpad_bytes,
            compile_ns=origin.compile_ns,
            was_cached=origin.was_cached,
            reason=origin.reason,
            stack=first_stack,
            step=ring.step,
        )
    )
    ring.operators += operators
    return entry


COLLECTIVE = "neuron::collective"


def profile_operators(
    compiled: CompiledGraph,
    numerics: Numerics,
    flops: Sequence[int],
    origins: Mapping[int, tuple[int, bool]],
    stack_table: StackTable,
    graph: int,
) -> list[OperatorDefinition]:
    """Returns the operators of a program in execution order.

    `flops` has the FLOPs of each operator. `origins` maps an operator's position to the number of its call stack and
    to whether it belongs to backward.
    """
    described = []
    for position, (instruction, counted) in enumerate(zip(compiled.instructions, flops, strict=True)):
        stack, is_backward = origins.get(position, (-1, False))
        name = operator_label(instruction)
        used, first = _instruction_layouts(instruction, compiled)
        described.append(
            OperatorDefinition(
                graph=graph,
                position=position,
                name=name,
                engine=Engine.COLLECTIVES if instruction.operator.name == COLLECTIVE else engine_of(name),
                flops=counted,
                bytes=sum(layout.nbytes for layout in used),
                result="" if first is None else first.text().partition("{")[0],
                compute_type=_compute_type(instruction, compiled, numerics) if counted else None,
                stack=stack if stack >= 0 else None,
                scope=stack_table.stacks[stack].scope if stack >= 0 else "",
                is_backward=is_backward,
            )
        )
    return described


def operator_label(instruction: Instruction) -> str:
    """Returns the name of an operator. The name of a collective has its kind, such as neuron::all_reduce."""
    name = instruction.operator.name
    if name == COLLECTIVE:
        kind = instruction.keywords.get("kind", (*instruction.arguments, "", "", "")[2])  # the third argument
        return f"neuron::{kind}"
    return name


def output_origins(compiled: CompiledGraph, described: Sequence[OperatorDefinition]) -> list[int]:
    """Returns, for each output, the call stack number of the operator that computes it; -1 if unknown."""
    stacks: dict[int, int] = {}
    for instruction, operator in zip(compiled.instructions, described, strict=True):
        for number in flattened(instruction.results):
            stacks[number] = -1 if operator.stack is None else operator.stack
    return [stacks.get(number, -1) for number in compiled.outputs]


def _instruction_layouts(
    instruction: Instruction, compiled: CompiledGraph
) -> tuple[list[TensorLayout], TensorLayout | None]:
    """Returns two results: the layouts of all values an instruction uses, and the layout of its first result."""
    layouts = compiled.layouts
    read = [
        use.layout or layouts[use.value]
        for use in flattened([instruction.arguments, *instruction.keywords.values()])
        if isinstance(use, ValueUse)
    ]
    written = [layouts[number] for number in (*flattened(instruction.results), *instruction.written)]
    return [*read, *written], written[0] if written else None


def _compute_type(instruction: Instruction, compiled: CompiledGraph, numerics: Numerics) -> str | None:
    for part in flattened(instruction.arguments):
        if isinstance(part, ValueUse):
            return numerics.multiplied(str(compiled.layouts[part.value].device_dtype).removeprefix("torch."))
    return None


_MOST_EARLIER_GRAPHS = 8
_INPUT = " = input "


class GraphChanges:
    """Compares each new graph with the previous 8 graphs. `latest` has the last 8 differences as text.

    Callers hold the runtime's lock.
    """

    def __init__(self) -> None:
        self.latest: deque[str] = deque(maxlen=_MOST_EARLIER_GRAPHS)
        # The inputs of each graph, and its operator names without shapes.
        self._earlier_graphs: deque[tuple[list[str], list[str]]] = deque(maxlen=_MOST_EARLIER_GRAPHS)

    def add_graph(self, text: str) -> None:
        """Compares a new graph with earlier graphs and stores the difference. `text` is from `compiler.graph_text`."""
        lines = text.splitlines()
        inputs = [line.partition(_INPUT)[2] for line in lines if _INPUT in line]
        operators = [line.partition(" = ")[2].partition("(")[0] for line in lines if _INPUT not in line]
        alike = next((earlier for earlier, names in reversed(self._earlier_graphs) if names == operators), None)
        if alike is not None:
            changed = [(old, now) for old, now in zip(alike, inputs, strict=False) if old != now]
            if changed:
                old, now = _first_difference(*changed[0])
                self.latest.append(f"an input is {now} where it was {old}")
            elif len(alike) != len(inputs):
                self.latest.append(f"it has {len(inputs)} inputs where it had {len(alike)}")
            else:
                self.latest.append("a constant in it has changed, or other results of it are needed later")
        elif self._earlier_graphs:
            before = len(self._earlier_graphs[-1][1])
            self.latest.append(f"it has {len(operators)} operators, the one before has {before}")
        self._earlier_graphs.append((inputs, operators))


def _first_difference(old: str, now: str) -> tuple[str, str]:
    """Returns the texts of two layouts; without the strides, unless only the strides differ."""
    short = old.partition("{")[0], now.partition("{")[0]
    return (old, now) if short[0] == short[1] else short
