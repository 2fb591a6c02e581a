"""A compiled graph loaded for execution. Its first run is interpreted and checked; later runs use generated code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from neurontools.runtime.capture.replay import mark_eager_only
from neurontools.runtime.counting.steps import COMPILE, step_clock
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.operators.operator import DeviceOperator, flattened
from neurontools.runtime.programs.compiled_graph import CompiledGraph, HostInput, Instruction, ScalarInput, ValueUse
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.tensors.buffers import Tensor, reinterpreted

Run = Callable[[Sequence[Tensor], Sequence[Any], Sequence[Tensor], torch.Generator], list[Tensor]]
TimedRun = Callable[
    [Sequence[Tensor], Sequence[Any], Sequence[Tensor], torch.Generator], tuple[list[Tensor], tuple[int, ...]]
]


class MetaMismatch(RuntimeError):
    """An operator returned another shape or dtype than its meta kernel predicted, so later results would be wrong.

    From then on, the operator runs eagerly.
    """

    def __init__(self, operator: DeviceOperator, value: Tensor, layout: TensorLayout) -> None:
        super().__init__(
            f"{operator.name} returned {value.dtype}{list(value.shape)} where its meta kernel announced "
            f"{layout.text()}; it runs eagerly from now on: run the step again"
        )
        mark_eager_only(operator)


class Replacement(Protocol):
    """Replaces the instructions in range(first, end) of a program. `run` computes `outputs` from `inputs`."""

    run: Callable[[list[Tensor], Sequence[Any]], list[Tensor]]
    first: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Program:
    """A compiled graph on one core. Inputs and outputs are CPU tensors, in the order of its compiled graph.

    The first execution finds the results whose strides differ from those of the meta kernel, or that share bytes with
    an argument. Each execution copies these results into the layout of the meta kernel. Without the copy, views of
    these results would read the wrong elements.
    """

    def __init__(self, compiled: CompiledGraph, numerics: Numerics, check: Callable[[], None] | None = None) -> None:
        self.compiled = compiled
        self.numerics = numerics
        self.check = check  # called after each instruction; its exception ends the execution
        self.calls = [numerics.call_of(instruction, compiled) for instruction in compiled.instructions]
        self.restrided: set[int] = set()
        self.source = ""
        self._run: Run | None = None
        self._run_timed: TimedRun | None = None
        self._is_checked = False

    def run(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> list[Tensor]:
        """Executes the program once and returns its outputs.

        Interprets it the first time, and runs generated code afterwards.
        """
        if self._run is not None:
            return self._run(inputs, scalars, hosts, generator)
        if not self._is_checked:
            outputs = _interpret(self, inputs, scalars, hosts, generator, lambda: None)
            self._is_checked = True
            return outputs
        entry = step_clock.open(COMPILE, time.perf_counter())
        try:
            self.source, self._run = _generate(self)
        finally:
            step_clock.close(entry, time.perf_counter())
        return self._run(inputs, scalars, hosts, generator)

    def run_timed(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> tuple[list[Tensor], tuple[int, ...]]:
        """Like `run`, but also returns the times (perf_counter_ns) before the first and after each instruction."""
        if self._run_timed is not None:
            return self._run_timed(inputs, scalars, hosts, generator)
        if self._is_checked:
            self.prepare_timed()
            return self.run_timed(inputs, scalars, hosts, generator)
        times = [perf_counter_ns()]
        outputs = _interpret(self, inputs, scalars, hosts, generator, lambda: times.append(perf_counter_ns()))
        self._is_checked = True
        return outputs, tuple(times)

    def prepare_timed(self) -> None:
        """Generates the code of `run_timed` in advance, so that an execution's time does not include it."""
        if self._is_checked and self._run_timed is None:
            entry = step_clock.open(COMPILE, time.perf_counter())
            try:
                _, self._run_timed = _generate(self, is_timed=True)
            finally:
                step_clock.close(entry, time.perf_counter())


def _interpret(
    program: Program,
    inputs: Sequence[Tensor],
    scalars: Sequence[Any],
    hosts: Sequence[Tensor],
    generator: torch.Generator,
    tick: Callable[[], None],
) -> list[Tensor]:
    """Executes the instructions and checks their results. Calls `tick` after each instruction."""
    compiled = program.compiled
    values: dict[int, Tensor] = dict(zip(compiled.inputs, inputs, strict=True))

    for instruction, call in zip(compiled.instructions, program.calls, strict=True):
        _interpret_instruction(program, instruction, call, values, scalars, hosts, generator)
        for number in instruction.dead:
            values.pop(number, None)
        if program.check is not None:
            program.check()
        tick()
    return [values[number] for number in compiled.outputs]


def _interpret_instruction(
    program: Program,
    instruction: Instruction,
    call: Callable[..., Any],
    values: dict[int, Tensor],
    scalars: Sequence[Any],
    hosts: Sequence[Tensor],
    generator: torch.Generator,
) -> None:
    """Computes and checks the results of one instruction, and stores the only references to them in `values`."""
    arguments = [value_of(a, values, scalars, hosts) for a in instruction.arguments]
    keywords = {name: value_of(a, values, scalars, hosts) for name, a in instruction.keywords.items()}
    if instruction.operator.has_generator:
        keywords["generator"] = generator
    result = call(*arguments, **keywords)
    pointers = {t.untyped_storage().data_ptr() for t in flattened([arguments, *keywords.values()]) if _bytes(t)}
    for number, value in _pairs(instruction, result):
        values[number] = _check_result(program, instruction, number, value, pointers)
        if _bytes(values[number]):
            pointers.add(values[number].untyped_storage().data_ptr())


def run_instructions(
    program: Program, positions: Iterable[int], values: dict[int, Tensor], scalars: Sequence[Any]
) -> None:
    """Executes some instructions of a program that was executed before. Adds their results to `values`."""
    for position in positions:
        instruction = program.compiled.instructions[position]
        for number, value in results_of(instruction, program.calls[position], values, scalars):
            is_as_announced = number not in program.restrided
            values[number] = value if is_as_announced else restride(value, program.compiled.layouts[number])


def results_of(
    instruction: Instruction, call: Callable[..., Any], values: dict[int, Tensor], scalars: Sequence[Any]
) -> list[tuple[int, Tensor]]:
    """Returns the results of an instruction that `call` computes, each with its value number."""
    arguments = [value_of(a, values, scalars) for a in instruction.arguments]
    keywords = {name: value_of(a, values, scalars) for name, a in instruction.keywords.items()}
    return _pairs(instruction, call(*arguments, **keywords))


def value_of(part: Any, values: dict[int, Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor] = ()) -> Any:
    """Returns the value of an instruction's argument. A recursive closure would do the same, but keep values alive."""
    if isinstance(part, ValueUse):
        offset = 0 if part.offset is None else scalars[part.offset]
        return values[part.value] if part.layout is None else _view_storage(values[part.value], part.layout, offset)
    if isinstance(part, ScalarInput):
        return scalars[part.index]
    if isinstance(part, HostInput):
        return hosts[part.index]
    if isinstance(part, (list, tuple)):
        return [value_of(item, values, scalars, hosts) for item in part]
    return _on_device(part)


def _bytes(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.untyped_storage().nbytes() > 0


def _pairs(instruction: Instruction, result: Any) -> list[tuple[int, Tensor]]:
    numbers = instruction.results
    return _flat_pairs(numbers, result if len(numbers) > 1 else (result,)[: len(numbers)])


def _flat_pairs(numbers: Any, values: Any) -> list[tuple[int, Tensor]]:
    if isinstance(numbers, (list, tuple)):
        return [pair for number, value in zip(numbers, values, strict=True) for pair in _flat_pairs(number, value)]
    return [] if numbers is None else [(numbers, values)]


def _check_result(program: Program, instruction: Instruction, number: int, value: Tensor, pointers: set[int]) -> Tensor:
    layout = program.compiled.layouts[number]
    has_layout = _has_layout(instruction.operator, value, layout)
    if not has_layout or (_bytes(value) and value.untyped_storage().data_ptr() in pointers):
        program.restrided.add(number)
        return restride(value, layout)
    return value


def _checker(operator: DeviceOperator, layout: TensorLayout) -> Callable[[Tensor], Tensor]:
    """Returns a function that checks the shape of a result, and copies the result if its layout differs."""
    return lambda value: value if _has_layout(operator, value, layout) else restride(value, layout)


def _has_layout(operator: DeviceOperator, value: Tensor, layout: TensorLayout) -> bool:
    """Returns whether a result has a layout. Raises MetaMismatch if its shape or dtype differs."""
    if value.shape != layout.size or (value.dtype is not layout.device_dtype and not layouts.narrowed):
        raise MetaMismatch(operator, value, layout)
    if value.dtype is not layout.device_dtype or value.storage_offset():
        return False
    return not layout.extent or (
        all(n == 1 or a == b for n, a, b in zip(layout.size, value.stride(), layout.stride, strict=True))
        and value.untyped_storage().nbytes() == layout.extent * value.element_size()
    )


def restride(value: Tensor, layout: TensorLayout) -> Tensor:
    copy = torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype, device="cpu")
    copy.copy_(value)
    return copy


def _view_storage(value: Tensor, layout: TensorLayout, offset: int) -> Tensor:
    if layout.device_dtype is value.dtype:
        return value.as_strided(layout.size, layout.stride, offset)
    if layouts.narrowed:
        raise RuntimeError(
            "XLA_USE_BF16 or XLA_DOWNCAST_BF16: the bytes of a float tensor can't be seen as another type, because the "
            "device holds them as bfloat16; unset the variable or convert with .to(dtype)"
        )
    return reinterpreted(value, layout.device_dtype, layout.size, layout.stride, offset)


def _on_device(part: Any) -> Any:
    """Returns the dtype in HBM for a dtype of the script. Returns any other argument unchanged."""
    return layouts.narrowed.get(part, part) if isinstance(part, torch.dtype) else part


class _Writer:
    """Writes the source of a straight-line program and collects the objects that it uses."""

    def __init__(self, layouts: dict[int, TensorLayout]) -> None:
        self.names: dict[str, Any] = {
            "as_strided": torch.as_strided,
            "view_storage": _view_storage,
            "restride": restride,
        }
        self._layouts = layouts
        self._by_id: dict[int, str] = {}

    def name(self, value: Any, prefix: str) -> str:
        found = self._by_id.get(id(value))
        if found is None:
            found = self._by_id[id(value)] = f"{prefix}{len(self.names)}"
            self.names[found] = value
        return found

    def expression(self, part: Any) -> str:
        if isinstance(part, ValueUse):
            if part.layout is None:
                return f"v{part.value}"
            offset = "0" if part.offset is None else f"S[{part.offset}]"
            if part.layout.device_dtype is self._layouts[part.value].device_dtype:  # a direct call is faster
                return f"as_strided(v{part.value},{part.layout.size},{part.layout.stride},{offset})"
            return f"view_storage(v{part.value},{self.name(part.layout, 'L')},{offset})"
        if isinstance(part, ScalarInput):
            return f"S[{part.index}]"
        if isinstance(part, HostInput):
            return f"H[{part.index}]"
        if isinstance(part, (list, tuple)):
            return "[" + ",".join(map(self.expression, part)) + "]"
        if part is None or isinstance(part, (bool, int)):
            return repr(part)
        return self.name(_on_device(part), "k")


def with_replacements(program: Program, replacements: Sequence[Replacement]) -> Run:
    run: Run = _generate(program, replacements=replacements)[1]
    return run


def _replaced(writer: _Writer, program: Program, replacement: Replacement) -> list[str]:
    """Returns the source of a call of a replacement. The source looks up `run` at each execution: `run` may change."""
    inputs = ",".join(f"v{number}" for number in replacement.inputs)
    line = f"{writer.name(replacement, 'r')}.run([{inputs}], S)"
    if replacement.outputs:
        line = "".join(f"v{number}, " for number in replacement.outputs) + f"= {line}"
    replaced_numbers = {*replacement.inputs, *replacement.outputs}
    instructions = program.compiled.instructions[replacement.first : replacement.end]
    dead = [number for instruction in instructions for number in instruction.dead if number in replaced_numbers]
    return [f"    {line}"] + (["    del " + ", ".join(f"v{number}" for number in dead)] if dead else [])


def _generate(program: Program, *, is_timed: bool = False, replacements: Sequence[Replacement] = ()) -> tuple[str, Any]:
    """Returns the generated Python source of a program and its compiled function, a TimedRun if `is_timed`."""
    compiled, made_layouts = program.compiled, program.compiled.layouts
    writer = _Writer(made_layouts)
    replacing = {each.first: each for each in replacements}
    left_out = {position for each in replacements for position in range(each.first, each.end)}
    lines = ["def run(I, S, H, G):"]
    times: list[str] = []

    def append_clock_read() -> None:
        if is_timed:
            times.append(f"t{len(times)}")
            lines.append(f"    {times[-1]} = {writer.name(perf_counter_ns, 'now')}()")

    if compiled.inputs:
        lines.append("    " + "".join(f"v{number}," for number in compiled.inputs) + " = I")
    append_clock_read()
    for position, (instruction, call) in enumerate(zip(compiled.instructions, program.calls, strict=True)):
        if position in left_out:
            if position in replacing:
                lines += _replaced(writer, program, replacing[position])
                if program.check is not None:
                    lines.append(f"    {writer.name(program.check, 'c')}()")
            continue
        arguments = [writer.expression(a) for a in instruction.arguments]
        arguments += [f"{name}={writer.expression(a)}" for name, a in instruction.keywords.items()]
        if instruction.operator.has_generator:
            arguments.append("generator=G")
        binding = BINDINGS.get(instruction.operator.name)
        if (
            binding is None
            or call is not instruction.operator.call
            or not isinstance(instruction.arguments[0], (ValueUse, list, tuple))
        ):
            binding = call
        line = f"{writer.name(binding, 'f')}({', '.join(arguments)})"
        targets = [_target(result) for result in instruction.results]
        if any(result is not None for result in instruction.results):
            line = ", ".join(targets) + " = " + line
        lines.append("    " + line)
        lines.extend(
            f"    v{number} = restride(v{number}, {writer.name(made_layouts[number], 'L')})"
            for number in flattened(instruction.results)
            if number in program.restrided
        )
        if not instruction.operator.trusted:
            lines.extend(
                f"    v{number} = {writer.name(_checker(instruction.operator, made_layouts[number]), 'c')}(v{number})"
                for number in flattened(instruction.results)
            )
        if instruction.dead:
            lines.append("    del " + ", ".join(f"v{number}" for number in instruction.dead))
        if program.check is not None:
            lines.append(f"    {writer.name(program.check, 'c')}()")
        append_clock_read()
    outputs = "[" + ", ".join(f"v{number}" for number in compiled.outputs) + "]"
    lines.append(f"    return {outputs}, ({', '.join(times)},)" if is_timed else f"    return {outputs}")
    source = "\n".join(lines) + "\n"
    # exec is safe: the source has only numbers and generated names, and no text of a file or of the script.
    exec(compile(source, f"<{compiled.module}>", "exec"), writer.names)  # noqa: S102
    return source, writer.names["run"]


def _target(result: Any) -> str:
    if result is None:
        return "_"
    if isinstance(result, list):
        return "[" + ", ".join(map(_target, result)) + "]"
    return f"v{result}"


_functions: Any = torch._C._VariableFunctions
_nn: Any = torch._C._nn
_methods: Any = torch._C.TensorBase

BINDINGS: dict[str, Callable[..., Any]] = {
    **{f"aten::{name}.Tensor": getattr(_functions, name) for name in ("add", "sub", "mul", "div")},
    **{f"aten::{name}_.Tensor": getattr(_methods, f"{name}_") for name in ("add", "sub", "mul", "div")},
    **{
        f"aten::{name}": getattr(_functions, name)
        for name in (
            "mm bmm addmm relu sigmoid tanh exp sqrt rsqrt neg embedding clone _softmax _log_softmax "
            "_softmax_backward_data _log_softmax_backward_data native_layer_norm"
        ).split()
        if hasattr(_functions, name)
    },
    **{f"aten::{name}_": getattr(_methods, f"{name}_") for name in ("relu", "sigmoid", "tanh")},
    **{
        f"aten::_foreach_{name}": getattr(_functions, f"_foreach_{name.partition('.')[0]}")
        for name in (
            "add_.List add_.Scalar mul_.Scalar lerp_.Scalar addcmul_.Scalar sqrt div_.ScalarList addcdiv_.ScalarList"
        ).split()
    },
    "aten::gelu": _nn.gelu,
}
"""Functions of torch, by the name of the operator that they compute."""
