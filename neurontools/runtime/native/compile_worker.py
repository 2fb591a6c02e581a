"""Compiles the segments (runs of instructions) of one program with inductor, in a separate process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from neurontools.runtime.kernels.layers import dropout_kernels, normalization_kernels, probed_kernels
from neurontools.runtime.kernels.linear import linear_kernels
from neurontools.runtime.native.segments import Archive, InvalidArchive, Segment, base_name, segments_of
from neurontools.runtime.operators.operator import flattened
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph, Instruction, ScalarInput
from neurontools.runtime.programs.compiler import parse_compiler_flags
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program, results_of
from neurontools.runtime.tensors.buffers import Tensor
from neurontools.util.signals import set_parent_death_signal

_NICENESS = 5
_LONGEST_REASON = 300
_LONGEST_WAIT_SECONDS = 3600.0


def main() -> None:
    """Entry point: `compile_worker REQUEST RESULT`. Reads a build request and writes an archive of machine code.

    Both arguments are file descriptors. The compile cache gets a copy of the archive.
    """
    given, result = map(int, sys.argv[1:3])
    if not set_parent_death_signal(os.getppid(), signal.SIGKILL):
        return
    os.nice(_NICENESS)
    with os.fdopen(given, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = json.load(file)
    for add_operators in (dropout_kernels, normalization_kernels, linear_kernels, probed_kernels):
        add_operators()
    compiled = CompiledGraph.from_json(request["graph"].encode())
    flags = parse_compiler_flags(request["flags"])
    cache = CompileCache({**request["environment"], "NEURON_RT_LOG_LEVEL": ""})
    cache.longest_wait_seconds = _LONGEST_WAIT_SECONDS
    key = request["key"]
    with cache.locked(compiled.graph_hash, flags, "machine-code.lock"):
        data = cache.machine_code(compiled.graph_hash, flags, key)
        if data is None or not _is_complete(data, compiled, request):
            data = _build_archive(compiled, request).to_bytes()
            cache.store_machine_code(compiled.graph_hash, flags, key, data)
    with os.fdopen(result, "wb") as file:
        file.write(data)


def _is_complete(data: bytes, compiled: CompiledGraph, request: dict[str, Any]) -> bool:
    """Returns whether a cached archive satisfies this request. Another rank may have built the archive meanwhile."""
    try:
        archive = Archive.from_bytes(data, compiled.module, request["key"])
    except (InvalidArchive, ValueError, KeyError, TypeError):
        return False
    return bool(archive.refusal) or set(request["changing"]) <= set(archive.changing)


def _build_archive(compiled: CompiledGraph, request: dict[str, Any]) -> Archive:
    scalars = [float.fromhex(value) if isinstance(value, str) else value for value in request["scalars"]]
    changing = set(request["changing"])
    torch.set_num_threads(request["threads"])
    program = Program(compiled, Numerics())
    segments = segments_of(compiled, changing)
    key = request["key"]
    try:
        objects = [_compile_segment(program, segment, scalars) for segment in segments]
    except Exception as error:  # after any compiler error, the training continues without machine code
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:_LONGEST_REASON]
        return Archive(compiled.module, key, refusal=f"torch's compiler refused it ({reason})")
    fixed = sorted({index for segment in segments for index in segment.fixed})
    return Archive(
        compiled.module,
        key,
        tuple(segments),
        tuple(objects),
        tuple((index, scalars[index]) for index in fixed),
        tuple(sorted(changing)),
    )


_OPTIONS: dict[str, Any] = {
    # Rounds bfloat16 results after each operator, as the CPU's kernels do.
    "emulate_precision_casts": True,
    "layout_optimization": False,
    "fallback_random": True,
    "compile_threads": 1,
    # A graph is compiled once, so precompiled headers are not worth their cost.
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "cpp.vec_isa_ok": True,
}


def _compile_segment(program: Program, segment: Segment, scalars: Sequence[Any]) -> bytes:
    """Returns the bytes of a shared object. `scalars` has the values of the graph's scalars in one execution."""
    import torch._inductor as inductor

    layouts = [program.compiled.layouts[number] for number in segment.inputs]
    inputs = [torch.empty_strided(each.size, each.stride, dtype=each.device_dtype).zero_() for each in layouts]
    if segment.changing:
        inputs.append(torch.ones(len(segment.changing), dtype=torch.float64))
    with torch.no_grad():
        traced = make_fx(_function(program, segment, scalars), tracing_mode="fake")(*inputs)
        options = {**_OPTIONS, "cpp.threads": torch.get_num_threads()}
        path: Any = inductor.aot_compile(traced, tuple(inputs), options=options)
    return Path(path).read_bytes()


def _function(program: Program, segment: Segment, scalars: Sequence[Any]) -> Callable[..., list[Tensor]]:
    """Returns a function that executes a segment. Its arguments are the inputs and one tensor of changing scalars."""
    positions = {index: position for position, index in enumerate(segment.changing)}
    instructions = program.compiled.instructions

    def run(*given: Tensor) -> list[Tensor]:
        values = dict(zip(segment.inputs, given, strict=False))
        numbers = list(scalars)
        for index, position in positions.items():
            numbers[index] = given[-1][position]
        for place in range(segment.first, segment.end):
            instruction = instructions[place]
            is_changing = _changes(instruction, positions)
            call = _formula_with_dynamic_scalars(instruction) if is_changing else program.calls[place]
            values.update(results_of(instruction, call, values, numbers))
        return [values[number] for number in segment.outputs]

    return run


def _changes(instruction: Instruction, changing: dict[int, int]) -> bool:
    parts = flattened([instruction.arguments, *instruction.keywords.values()])
    return any(isinstance(part, ScalarInput) and part.index in changing for part in parts)


def _cast_scalar(number: Any, like: Tensor) -> Any:
    """Converts a 0-d tensor to the type that the CPU's kernels use for scalars. Returns other values unchanged."""
    if not isinstance(number, Tensor) or number.dim():
        return number
    return number.to(torch.float64 if like.dtype is torch.float64 else torch.float32)


def _scaled(value: Any, factor: Any, like: Tensor) -> Any:
    return value if isinstance(factor, int) and factor == 1 else value * _cast_scalar(factor, like)


def _lerp(self: Tensor, end: Tensor, weight: Any) -> Any:
    return torch.lerp(self, end, _cast_scalar(weight, self).to(self.dtype) if isinstance(weight, Tensor) else weight)


_FORMULAS: dict[str, Callable[..., Any]] = {
    "add": lambda self, other, alpha=1: self + _scaled(_cast_scalar(other, self), alpha, self),
    "sub": lambda self, other, alpha=1: self - _scaled(_cast_scalar(other, self), alpha, self),
    "mul": lambda self, other: self * _cast_scalar(other, self),
    "div": lambda self, other: self / _cast_scalar(other, self),
    "addcmul": lambda self, first, second, value=1: self + _scaled(first, value, self) * second,
    "addcdiv": lambda self, first, second, value=1: self + _scaled(first, value, self) / second,
    "lerp": _lerp,
}


def _formula_with_dynamic_scalars(instruction: Instruction) -> Callable[..., Any]:
    """Returns a function that computes an instruction whose scalars may be tensors."""
    operator = instruction.operator
    formula = _FORMULAS[base_name(operator.name)]
    if operator.name.startswith("aten::_foreach_"):
        formula = _on_lists(formula)
    return _in_place(formula) if operator.in_place else formula


def _on_lists(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that applies a formula to each tensor of a list. A single number applies to all tensors."""

    def run(first: Sequence[Tensor], *others: Any, **keywords: Any) -> list[Any]:
        def at(value: Any, position: int) -> Any:
            return value[position] if isinstance(value, (list, tuple)) else value

        return [
            formula(
                each,
                *(at(other, position) for other in others),
                **{_FOREACH_KEYWORDS.get(name, name): at(value, position) for name, value in keywords.items()},
            )
            for position, each in enumerate(first)
        ]

    return run


_FOREACH_KEYWORDS = {"scalars": "value", "scalar": "value"}


def _in_place(formula: Callable[..., Any]) -> Callable[..., None]:
    def run(target: Any, *others: Any, **keywords: Any) -> None:
        result = formula(target, *others, **keywords)
        if isinstance(result, list):
            for each, value in zip(target, result, strict=True):
                each.copy_(value)
        else:
            target.copy_(result)

    return run


if __name__ == "__main__":
    main()
