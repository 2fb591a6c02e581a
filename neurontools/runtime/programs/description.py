"""A loaded program as a profile describes it: each operator with what it computes and where it is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neurontools.profile.definitions import Engine, OperatorDefinition, engine_of
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.profiling.ring import StackTable
from neurontools.runtime.programs.compiled_graph import CompiledGraph, Instruction, Use, flattened
from neurontools.runtime.programs.numerics import Numerics

COLLECTIVE = "neuron::collective"
_KIND_ARGUMENT = 2


def operators_of(
    compiled: CompiledGraph,
    numerics: Numerics,
    flops: Sequence[int],
    origins: Mapping[int, tuple[int, bool]],
    known: StackTable,
    graph: int,
) -> list[OperatorDefinition]:
    """The operators of a program, in its order.

    `flops` are theirs; `origins` has the stack of an operator by its position, and whether it is of a backward pass.
    """
    described = []
    for position, instruction in enumerate(compiled.instructions):
        stack, is_backward = origins.get(position, (-1, False))
        name = name_of(instruction)
        used, first = _layouts(instruction, compiled)
        counted = flops[position]
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
                scope=known.scopes[stack] if stack >= 0 else "",
                is_backward=is_backward,
            )
        )
    return described


def name_of(instruction: Instruction) -> str:
    """An operator's name; of a collective, which one it is: neuron::all_reduce."""
    name = instruction.operator.name
    if name == COLLECTIVE:
        kind = instruction.keywords.get("kind", (*instruction.arguments, "", "", "")[_KIND_ARGUMENT])
        return f"neuron::{kind}"
    return name


def output_origins(compiled: CompiledGraph, described: Sequence[OperatorDefinition]) -> list[int]:
    """The stack of what made each output; -1 where that is unknown."""
    made: dict[int, int] = {}
    for instruction, operator in zip(compiled.instructions, described, strict=True):
        for number in flattened(instruction.results):
            made[number] = -1 if operator.stack is None else operator.stack
    return [made.get(number, -1) for number in compiled.outputs]


def _layouts(instruction: Instruction, compiled: CompiledGraph) -> tuple[list[TensorLayout], TensorLayout | None]:
    """The layouts that it reads and writes, and that of its first result or of what it changes in place."""
    layouts = compiled.layouts
    read = [
        use.layout or layouts[use.value]
        for use in flattened([list(instruction.arguments), list(instruction.keywords.values())])
        if isinstance(use, Use)
    ]
    made = [layouts[number] for number in (*flattened(instruction.results), *instruction.written)]
    return [*read, *made], made[0] if made else None


def _compute_type(instruction: Instruction, compiled: CompiledGraph, numerics: Numerics) -> str | None:
    uses: Any = (part for part in flattened(list(instruction.arguments)) if isinstance(part, Use))
    first = next(uses, None)
    if first is None:
        return None
    return numerics.multiplied(str(compiled.layouts[first.value].device_dtype).removeprefix("torch."))
