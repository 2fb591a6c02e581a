"""Describes graphs for profiles: their operators and engines, their origin, and why a graph is new."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neurontools.profile.collective_traffic import sent_bytes
from neurontools.profile.definitions import Engine, GraphDefinition, OperatorDefinition, engine_of
from neurontools.runtime.execution.gloo import own_rank, ranks_of_group
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
    """How a program was obtained: the compile time in ns, whether it was cached, and why its graph is new.

    `stack` is the number of the call stack that made the graph new; None if unknown.
    """

    compile_ns: int
    was_cached: bool
    reason: str
    stack: int | None = None


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
            stack=first_stack if origin.stack is None else origin.stack,
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
        is_collective = instruction.operator.name == COLLECTIVE
        sent = _collective_bytes(instruction, compiled) if is_collective else {}
        described.append(
            OperatorDefinition(
                graph=graph,
                position=position,
                name=name,
                engine=Engine.COLLECTIVES if is_collective else engine_of(name),
                flops=counted,
                bytes=sum(layout.nbytes for layout in used),
                result="" if first is None else first.text().partition("{")[0],
                compute_type=_compute_type(instruction, compiled, numerics) if counted else None,
                stack=stack if stack >= 0 else None,
                scope=stack_table.stacks[stack].scope if stack >= 0 else "",
                is_backward=is_backward,
                peers=tuple(sent),
                sent_bytes=tuple(sent.values()),
            )
        )
    return described


_COLLECTIVE_PARAMETERS = ("outputs", "inputs", "kind", "reduction", "root", "group")


def _collective_bytes(instruction: Instruction, compiled: CompiledGraph) -> dict[int, int]:
    """Maps the ranks to which this process sends data in a collective to the bytes for each."""
    given = dict(zip(_COLLECTIVE_PARAMETERS, instruction.arguments, strict=False)) | dict(instruction.keywords)
    own, group = own_rank(), given["group"]
    if own is None or group < 0:  # a negative group belongs to a traced model, whose ranks are threads
        return {}
    uses = [use for use in flattened([given["inputs"] or given["outputs"]]) if isinstance(use, ValueUse)]
    size = sum((use.layout or compiled.layouts[use.value]).nbytes for use in uses)
    return sent_bytes(given["kind"], ranks_of_group(group), own, size, given["root"], given["reduction"])


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
_LAYOUT = re.compile(r"\w+\[[\d,]*\]\{[\d,]*\}")  # such as float32[8,16]{16,1}, as `TensorLayout.text` writes it


@dataclass(frozen=True, slots=True)
class GraphChange:
    """The first difference between a new graph and an earlier one.

    `input_number` is the number of the input that changed. `operator_position` is the position of the operator that
    changed. Both are None if another property of the graph changed, or if there is no earlier graph.
    """

    input_number: int | None = None
    operator_position: int | None = None


class GraphChanges:
    """Compares each new graph with the previous 8 graphs. `latest` has the last 8 differences as text.

    Callers hold the runtime's lock.
    """

    def __init__(self) -> None:
        self.latest: deque[str] = deque(maxlen=_MOST_EARLIER_GRAPHS)
        # The inputs of each graph, and its operators without the numbers of their results and tensors.
        self._earlier_graphs: deque[tuple[list[str], list[str]]] = deque(maxlen=_MOST_EARLIER_GRAPHS)

    def add_graph(self, text: str) -> GraphChange:
        """Compares a new graph with earlier graphs and stores the difference. `text` is from `compiler.graph_text`."""
        lines = text.splitlines()
        numbered = [(line.partition(_INPUT)[0], line.partition(_INPUT)[2]) for line in lines if _INPUT in line]
        inputs = [layout for _, layout in numbered]
        operators = [line.partition(" = ")[2].rpartition(" of ")[0] for line in lines if " of " in line]
        change = GraphChange()
        names = list(map(_name, operators))
        alike = next((each for each in reversed(self._earlier_graphs) if list(map(_name, each[1])) == names), None)
        if alike is not None:
            earlier_inputs, earlier_operators = alike
            input_index = _first_changed(earlier_inputs, inputs[: len(earlier_inputs)])
            position = _first_changed(earlier_operators, operators)
            if input_index is not None:
                old, now = _first_difference(earlier_inputs[input_index], inputs[input_index])
                self.latest.append(f"an input is {now} where it was {old}")
                change = GraphChange(input_number=int(numbered[input_index][0].removeprefix("%")))
            elif len(earlier_inputs) != len(inputs):
                self.latest.append(f"it has {len(inputs)} inputs where it had {len(earlier_inputs)}")
            else:
                self.latest.append(_operator_change(earlier_operators, operators, position))
                change = GraphChange(operator_position=position)
        elif self._earlier_graphs:
            before = self._earlier_graphs[-1][1]
            self.latest.append(f"it has {len(operators)} operators, the one before has {len(before)}")
            change = GraphChange(operator_position=_first_changed(list(map(_name, before)), names))
        self._earlier_graphs.append((inputs, operators))
        return change


def cause_stack(graph: Graph, change: GraphChange) -> int | None:
    """Returns the number of the call stack that made the changed part of a graph; None if it was not traced.

    An input comes from the copy to the device or from the data loader; if neither was traced, from its first operator.
    """
    position = change.operator_position
    if change.input_number is not None:
        stack = ring.input_stacks.get(graph.buffers[change.input_number].address, -1)
        if stack >= 0:
            return stack
        position = graph.first_use(change.input_number)
    stack, _ = graph.origins.get(-1 if position is None else position, (-1, False))
    return stack if stack >= 0 else None


def _name(operator: str) -> str:
    return operator.partition("(")[0]


def _first_changed(old: Sequence[str], now: Sequence[str]) -> int | None:
    """Returns the first position of `now` at which both lists differ; None if there is none."""
    different = (at for at, text in enumerate(now) if at >= len(old) or old[at] != text)
    return next(different, None)


def _operator_change(old: Sequence[str], now: Sequence[str], position: int | None) -> str:
    if position is None:
        return "other results of it are needed later"
    name = _name(now[position])
    old_layouts, layouts = (_LAYOUT.findall(operators[position]) for operators in (old, now))
    index = _first_changed(old_layouts, layouts)
    if index is None or index >= len(old_layouts):
        return f"a constant of {name} has changed"
    before, after = _first_difference(old_layouts[index], layouts[index])
    return f"{name} uses {after} where it used {before}"


def _first_difference(old: str, now: str) -> tuple[str, str]:
    """Returns the texts of two layouts; without the strides, unless only the strides differ."""
    short = old.partition("{")[0], now.partition("{")[0]
    return (old, now) if short[0] == short[1] else short
