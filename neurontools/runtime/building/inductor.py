"""From instructions to a shared object, by torch's inductor ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from neurontools.runtime.building.changing import with_changing
from neurontools.runtime.native.segments import Segment
from neurontools.runtime.programs.compiled_graph import Instruction, ScalarInput, flattened
from neurontools.runtime.programs.program import Program, value_of
from neurontools.runtime.tensors.core import Tensor

_OPTIONS: dict[str, Any] = {
    # As the CPU's kernels round: what is between two operators in bfloat16 is rounded to it.
    "emulate_precision_casts": True,
    "layout_optimization": False,
    "fallback_random": True,
    "compile_threads": 1,
    # A graph is compiled once: what compilations share is not worth its making.
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "cpp.vec_isa_ok": True,
}


def shared_object(program: Program, segment: Segment, scalars: Sequence[Any]) -> bytes:
    """The machine code of a segment; raises whatever the compiler does. `scalars` are those of an execution."""
    import torch._inductor as inductor

    inputs = [_example(program, number) for number in segment.inputs]
    if segment.changing:
        inputs.append(torch.ones(len(segment.changing), dtype=torch.float64))
    with torch.no_grad():
        traced = make_fx(_function(program, segment, scalars), tracing_mode="fake")(*inputs)
        options = {**_OPTIONS, "cpp.threads": torch.get_num_threads()}
        path: Any = inductor.aot_compile(traced, tuple(inputs), options=options)
    return Path(path).read_bytes()


def _example(program: Program, number: int) -> Tensor:
    layout = program.compiled.layouts[number]
    return torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype).zero_()


def _function(program: Program, segment: Segment, scalars: Sequence[Any]) -> Callable[..., list[Tensor]]:
    """The instructions as a function of the segment's inputs, and of the changing scalars as one tensor."""
    positions = {index: position for position, index in enumerate(segment.changing)}
    instructions = program.compiled.instructions

    def run(*given: Tensor) -> list[Tensor]:
        values = dict(zip(segment.inputs, given, strict=False))
        numbers = list(scalars)
        for index, position in positions.items():
            numbers[index] = given[-1][position]
        for place in range(segment.first, segment.end):
            instruction = instructions[place]
            call = with_changing(instruction) if _changes(instruction, positions) else program.calls[place]
            arguments = [value_of(a, values, numbers) for a in instruction.arguments]
            keywords = {name: value_of(a, values, numbers) for name, a in instruction.keywords.items()}
            made = call(*arguments, **keywords)
            results = made if len(instruction.results) > 1 else (made,) if instruction.results else ()
            for target, value in zip(instruction.results, results, strict=True):
                _keep(values, target, value)
        return [values[number] for number in segment.outputs]

    return run


def _keep(values: dict[int, Tensor], target: Any, value: Any) -> None:
    if isinstance(target, list):
        for each, part in zip(target, value, strict=True):
            _keep(values, each, part)
    elif target is not None:
        values[target] = value


def _changes(instruction: Instruction, changing: dict[int, int]) -> bool:
    parts = flattened([list(instruction.arguments), list(instruction.keywords.values())])
    return any(isinstance(part, ScalarInput) and part.index in changing for part in parts)
