"""Compiles a recorded graph: numbers its values, drops dead operators, plans the scratchpad."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import HostSlot, OperatorSignature, ScalarSlot, TensorSlot
from neurontools.runtime.programs.compiled_graph import (
    CompiledGraph,
    HostInput,
    Instruction,
    ScalarInput,
    Use,
    flattened,
)
from neurontools.runtime.tensors.core import Graph


@dataclass(slots=True)
class _Call:
    """A recorded call with the numbers of its tensors, scalars, hosts and results."""

    signature: OperatorSignature
    tensors: list[int]
    first_scalar: int
    first_host: int
    results: tuple[Any, ...]


def graph_text(graph: Graph, alive: bytes) -> str:
    """The recorded graph as text: equal texts are the same computation. This is what the graph's hash is made of."""
    lines = []
    position = number = 0
    key = graph.key
    for signature in graph.signatures:
        while key[position] < 0:
            lines.append(f"%{number} = input {graph.buffers[number].layout.text()}")
            number += 1
            position += 1
        position += 1
        used = key[position : position + signature.tensor_count]
        position += signature.tensor_count
        made = sum(1 for _ in flattened(list(signature.outputs)))
        results = " ".join(f"%{n}" for n in range(number, number + made))
        number += made
        lines.append(f"{results} = {signature.text()} of {' '.join(f'%{n}' for n in used)}")
    lines.append("alive " + " ".join(f"%{n}" for n, flag in enumerate(alive) if flag))
    return "\n".join(lines)


def graph_hash(text: str) -> str:
    """The hash of a graph's text: a decimal of up to 20 digits, as in the names of the compile cache."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def compile_graph(graph: Graph, alive: bytes, hash_text: str, flags_hash: str) -> CompiledGraph:
    """What computes the values whose storage is alive (alive[i] for buffer i) and the effects, nothing else."""
    calls, layouts, inputs = _calls(graph)
    kept = _without_dead(calls, alive)
    is_input = set(inputs)
    instructions, scratchpad_bytes = _plan(kept, layouts, is_input, alive)
    used = {number for call in kept for number in call.tensors}
    made = {number for call in kept for number in flattened(call.results)}
    return CompiledGraph(
        graph_hash=hash_text,
        flags_hash=flags_hash,
        inputs=tuple(number for number in inputs if number in used),
        outputs=tuple(number for number in sorted(made) if alive[number]),
        instructions=instructions,
        layouts={number: layouts[number] for number in sorted(used | made)},
        flops_by_dtype=_flops_by_dtype(kept, layouts),
        scratchpad_bytes=scratchpad_bytes,
        removed_count=len(calls) - len(kept),
    )


def kept_operators(graph: Graph, alive: bytes) -> list[tuple[int, OperatorSignature]]:
    """The operators that `compile_graph` keeps, in its order: where each is among the recorded ones, and how."""
    calls, _, _ = _calls(graph)
    positions = {id(call): position for position, call in enumerate(calls)}
    return [(positions[id(call)], call.signature) for call in _without_dead(calls, alive)]


def _calls(graph: Graph) -> tuple[list[_Call], dict[int, TensorLayout], list[int]]:
    """The calls, the layout of every value, and which values are inputs."""
    calls: list[_Call] = []
    layouts: dict[int, TensorLayout] = {}
    inputs: list[int] = []
    position = number = scalars = hosts = 0
    key = graph.key
    for signature in graph.signatures:
        while key[position] < 0:
            layouts[number] = graph.buffers[number].layout
            inputs.append(number)
            number += 1
            position += 1
        position += 1
        tensors = key[position : position + signature.tensor_count]
        position += signature.tensor_count
        results: list[Any] = []
        for output in signature.outputs or (None,) * len(signature.operator.returns):
            result, number = _numbered(output, number, layouts)
            results.append(result)
        calls.append(_Call(signature, tensors, scalars, hosts, tuple(results)))
        scalars += signature.scalar_count
        hosts += signature.host_count
    return calls, layouts, inputs


def _numbered(output: Any, number: int, layouts: dict[int, TensorLayout]) -> tuple[Any, int]:
    if output is None:
        return None, number
    if isinstance(output, list):
        numbers = []
        for item in output:
            result, number = _numbered(item, number, layouts)
            numbers.append(result)
        return numbers, number
    layouts[number] = output
    return number, number + 1


def _flops_by_dtype(calls: list[_Call], layouts: dict[int, TensorLayout]) -> dict[str, int]:
    """FLOPs by the element type of the first operand, as torch names it without its module."""
    flops: Counter[str] = Counter()
    for call in calls:
        if call.signature.flops:
            dtype = layouts[call.tensors[0]].device_dtype
            flops[str(dtype).removeprefix("torch.")] += call.signature.flops
    return dict(flops)


def _without_dead(calls: list[_Call], alive: bytes) -> list[_Call]:
    """The calls that somebody needs, found from the last one backwards."""
    live = {number for number, flag in enumerate(alive) if flag}
    kept = []
    for call in reversed(calls):
        operator = call.signature.operator
        touched = {call.tensors[slot] for slot in call.signature.written_slots}
        touched.update(flattened(call.results))
        if operator.effect or operator.random or not live.isdisjoint(touched):
            kept.append(call)
            live.update(call.tensors)
            live.update(touched)
    kept.reverse()
    return kept


def _plan(
    calls: list[_Call], layouts: dict[int, TensorLayout], inputs: set[int], alive: bytes
) -> tuple[tuple[Instruction, ...], int]:
    """Instructions with the values that die after each, and the peak of the temporaries in bytes."""
    last_use: dict[int, int] = {}
    for index, call in enumerate(calls):
        for number in (*call.tensors, *flattened(call.results)):
            last_use[number] = index
    instructions = []
    current = peak = 0
    for index, call in enumerate(calls):
        made = list(flattened(call.results))
        current += sum(layouts[number].nbytes for number in made if not alive[number])
        peak = max(peak, current)
        dead = tuple(
            number
            for number in dict.fromkeys((*call.tensors, *made))
            if last_use[number] == index and not alive[number] and number not in inputs
        )
        current -= sum(layouts[number].nbytes for number in dead)
        instructions.append(_instruction(call, layouts, dead))
    return tuple(instructions), peak


def _instruction(call: _Call, layouts: dict[int, TensorLayout], dead: tuple[int, ...]) -> Instruction:
    signature = call.signature

    def bound(slot: Any) -> Any:
        if isinstance(slot, TensorSlot):
            number = call.tensors[slot.slot]
            if slot.offset is None and layouts[number] is slot.layout:
                return Use(number)
            return Use(number, slot.layout, None if slot.offset is None else call.first_scalar + slot.offset)
        if isinstance(slot, ScalarSlot):
            return ScalarInput(call.first_scalar + slot.index)
        if isinstance(slot, HostSlot):
            return HostInput(call.first_host + slot.index)
        if isinstance(slot, list):
            return [bound(item) for item in slot]
        return slot

    return Instruction(
        signature.operator,
        tuple(bound(slot) for slot in signature.arguments),
        {name: bound(slot) for name, slot in signature.keywords.items()},
        call.results,
        tuple(call.tensors[slot] for slot in signature.written_slots),
        dead,
    )
