"""A program as the ring of a profile knows it."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.profile.definitions import GraphDefinition
from neurontools.runtime.execution.work import work_of
from neurontools.runtime.profiling.ring import GraphEntry, ring
from neurontools.runtime.programs.compiler import kept_operators
from neurontools.runtime.programs.description import operators_of, output_origins
from neurontools.runtime.programs.program import Program
from neurontools.runtime.tensors.core import Graph

FIRST_GRAPH = "the first one"


@dataclass(frozen=True, slots=True)
class GraphOrigin:
    """How a program came about: in how long, from where, and why there had to be one."""

    compile_ns: int
    was_cached: bool
    reason: str


def described(program: Program, graph: Graph, alive: bytes, origin: GraphOrigin) -> GraphEntry:
    """Makes a program known to the ring, from the graph that it was made of; the runtime's lock is held."""
    compiled = program.compiled
    kept = kept_operators(graph, alive)
    number = len(ring.graphs)
    origins = {index: graph.origins[position] for index, (position, _) in enumerate(kept) if position in graph.origins}
    operators = operators_of(
        compiled, program.numerics, [signature.flops for _, signature in kept], origins, ring.stack_table, number
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
