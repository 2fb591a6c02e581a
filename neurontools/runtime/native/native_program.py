"""Loads machine code, compares its results with those of the operators, and makes programs run the machine code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import WeakSet

import torch

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.native.background_builder import BackgroundBuilder, BuildRequest
from neurontools.runtime.native.segments import Archive, Segment, machine_key, segments_of
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiler import CompilerFlags
from neurontools.runtime.programs.program import Program, Run, run_instructions, with_replacements
from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.buffers import Tensor

WARM_UP_EXECUTIONS = 8
"""Executions of a graph before its compilation. They show which scalars differ between executions."""
_LEVEL = 3
_POLL_EVERY = 8
_MOST_BUILDS = 3


class NativeProgram:
    """A program under --optlevel 3, whose operators run one by one until its machine code is built.

    Callers hold the runtime's lock.
    """

    def __init__(self, program: Program, builder: BackgroundBuilder) -> None:
        self.program = program
        self.builder = builder
        self.is_native = False
        self._executions = 0
        self._builds = 0
        self._request: BuildRequest | None = None
        self._is_final = False
        self._fixed: list[int] = []
        self._values: list[Any] = []
        self._run: Run | None = None
        self._scalars: list[Any] | None = None
        self._changing: set[int] = set()

    @property
    def is_warm(self) -> bool:
        return self._executions > WARM_UP_EXECUTIONS

    @property
    def is_settled(self) -> bool:
        """Whether the decision is final: the program runs as machine code, or never will."""
        return self.is_native or self._is_final

    def run(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> list[Tensor]:
        """Executes the program once and returns its outputs, like `Program.run`."""
        if self._run is None:
            if not self._is_final:
                self._advance(scalars)
            if self._run is None:
                return self.program.run(inputs, scalars, hosts, generator)
        if [scalars[index] for index in self._fixed] != self._values:
            self._handle_changed_constants(scalars)
            return self.program.run(inputs, scalars, hosts, generator)
        outputs = self._run(inputs, scalars, hosts, generator)
        if self.is_native:  # false if this execution has discarded the machine code
            metrics.increment("MachineCodeExecution")
        return outputs

    def _advance(self, scalars: Sequence[Any]) -> None:
        """Starts a build, or polls for the result of the build. Runs at each execution until there is machine code."""
        if self._scalars is None:
            self._scalars = [*scalars]
        self._changing.update(i for i, (old, new) in enumerate(zip(self._scalars, scalars, strict=True)) if old != new)
        self._executions += 1
        if self._request is not None:
            archive = None if self._executions % _POLL_EVERY else self.builder.result(self._request)
            if archive is not None:
                self._request = None
                self._use_archive(archive, scalars)
        elif self.is_warm:
            self._begin(scalars)

    def _begin(self, scalars: Sequence[Any]) -> None:
        if not all(value.__class__ in (int, float, bool) for value in scalars):
            self._refuse("a number in it is neither an integer nor a float")
            return
        compiled = self.program.compiled
        key = machine_key(torch.get_num_threads())
        if not self._builds:
            found = self.builder.find(compiled, key)
            if found is not None:
                self._builds = 1
                self._use_archive(found, scalars)
                return
        if not segments_of(compiled, self._changing):
            self._refuse("none of its operators can be compiled to it")
        elif self.builder.is_free:
            self._builds += 1
            self._request = self.builder.begin(compiled, key, scalars, self._changing)
            if self._request is None:
                self._is_final = True

    def _use_archive(self, archive: Archive, scalars: Sequence[Any]) -> None:
        if archive.refusal:
            self._refuse(archive.refusal)
            return
        try:
            codes = [
                SegmentCode(self.program, segment, load_shared_object(code, archive.module), self._refuse)
                for segment, code in zip(archive.segments, archive.objects, strict=True)
            ]
        except (OSError, RuntimeError) as error:
            self._refuse(f"its machine code can't be loaded: {error}")
            return
        self._changing.update(archive.changing)
        self._fixed = [index for index, _ in archive.fixed]
        self._values = [value for _, value in archive.fixed]
        self._run = with_replacements(self.program, codes)
        self.is_native = True
        if [scalars[index] for index in self._fixed] != self._values:
            self._handle_changed_constants(scalars)

    def _handle_changed_constants(self, scalars: Sequence[Any]) -> None:
        """Handles scalars whose values differ from the constants in the machine code.

        Discards the machine code, so that a new build makes these scalars inputs. After 3 builds, keeps the code, which
        then runs only in executions with the old values.
        """
        different = {i for i, old in zip(self._fixed, self._values, strict=True) if scalars[i] != old}
        metrics.increment("MachineCodeMiss")
        if self._builds < _MOST_BUILDS:
            self._changing |= different
            self._run, self.is_native, self._scalars = None, False, None

    def _refuse(self, reason: str) -> None:
        self._run, self.is_native, self._is_final = None, False, True
        count = len(self.program.compiled.instructions)
        warn_once("machine code", f"--optlevel 3: a graph of {count} operators runs without machine code: {reason}")


class MachineCode:
    """All programs of this process that are compiled with --optlevel 3."""

    def __init__(self, environment: Mapping[str, str], cache: CompileCache) -> None:
        self.environment = environment
        self.cache = cache
        self._builder: BackgroundBuilder | None = None
        self._programs: WeakSet[NativeProgram] = WeakSet()

    @property
    def is_settled(self) -> bool:
        """Whether all frequent programs are settled: run as machine code, or never will. False if there are none."""
        settled = [program.is_settled for program in self._programs if program.is_warm]
        return bool(settled) and all(settled)

    def profile_remark(self, flags: CompilerFlags) -> str:
        """Returns a note for profiles that a profiled graph does not run as machine code; "" unless --optlevel is 3."""
        return "; not as machine code (--optlevel 3) while it is profiled" if flags.optlevel == _LEVEL else ""

    def native_program(self, program: Program, flags: CompilerFlags) -> NativeProgram | None:
        """Returns a NativeProgram for a program, or None without --optlevel 3 or if the program rounds numbers."""
        if flags.optlevel != _LEVEL:
            return None
        if not program.numerics.is_plain:
            warn_once(
                "machine code of casts", "--optlevel 3 does nothing where numbers are rounded (--auto-cast, bf16)"
            )
            return None
        if self._builder is None or self._builder.flags != flags:
            self._builder = BackgroundBuilder(self.environment, self.cache, flags)
        native = NativeProgram(program, self._builder)
        self._programs.add(native)
        return native


_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
_DIFFERENT_BOOLEANS = 1e-3
_LONGEST_SECONDS = 2.0  # time limit of a segment: it holds the GIL, so no thread can report meanwhile


class NumericsMismatch(RuntimeError):
    """A result of machine code differs from the operators' result. The message says what differs."""


_object_numbers = count(1)


def load_shared_object(code: bytes, name: str) -> Any:
    """Loads a shared object and returns torch's runner for it.

    Loads from memory, because a file could be replaced after its verification. Each path is written in another way:
    for a path that it has seen, the loader would return the earlier object.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        rest = memoryview(code)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        distinction = "".join("/." if bit == "1" else "/" for bit in f"{next(_object_numbers):b}")
        return torch._C._aoti.AOTIModelContainerRunnerCpu(f"/proc/self/fd{distinction}/{descriptor}", 1)
    finally:
        os.close(descriptor)


class SegmentCode:
    """The machine code of one segment, which replaces the segment's instructions.

    The first execution runs the operators too, compares the results, and returns those of the operators. If the machine
    code fails, is too slow, or differs by more than rounding, calls `refuse` with the reason and keeps the operators.
    """

    def __init__(self, program: Program, segment: Segment, runner: Any, refuse: Callable[[str], None]) -> None:
        self.first, self.end = segment.first, segment.end
        self.inputs, self.outputs = segment.inputs, segment.outputs
        self.run: Callable[[list[Tensor], Sequence[Any]], list[Tensor]] = self._first
        self._program = program
        self._updated = frozenset(segment.updated)
        self._changing = segment.changing
        self._runner = runner
        self._refuse = refuse

    def _first(self, inputs: list[Tensor], scalars: Sequence[Any]) -> list[Tensor]:
        copies = [
            value.clone() if number in self._updated else value
            for number, value in zip(self.inputs, inputs, strict=True)
        ]
        refusal, results, began = "", None, time.thread_time()
        try:
            results = self._computed([*copies], scalars)
        except RuntimeError as error:
            refusal = str(error).partition("\n")[0]
        if time.thread_time() - began > _LONGEST_SECONDS:
            refusal = f"it takes more than {_LONGEST_SECONDS:.0f} s of a CPU, for which other threads of Python wait"
        values = self._values(inputs, scalars)
        try:
            if results is not None:
                self._compare(copies, results, values)
                # Two executions must return different memory, because scripts may change results in place.
                places = {value.untyped_storage().data_ptr() for value in results if value.numel()}
                if any(value.untyped_storage().data_ptr() in places for value in self._computed([*copies], scalars)):
                    raise NumericsMismatch("a result has the same memory in each execution")
        except NumericsMismatch as error:
            refusal = str(error)
        if refusal:
            self._refuse(refusal)
            self.run = self._by_operators
        elif self._changing:
            self.run = self._computed
        else:
            run = self._runner.run
            self.run = lambda inputs, _scalars: run(inputs)
        return [values[number] for number in self.outputs]

    def _computed(self, inputs: list[Tensor], scalars: Sequence[Any]) -> list[Tensor]:
        if self._changing:
            inputs.append(torch.tensor([scalars[i] for i in self._changing], dtype=torch.float64, device="cpu"))
        results: list[Tensor] = self._runner.run(inputs)
        return results

    def _by_operators(self, inputs: list[Tensor], scalars: Sequence[Any]) -> list[Tensor]:
        values = self._values(inputs, scalars)
        return [values[number] for number in self.outputs]

    def _values(self, inputs: list[Tensor], scalars: Sequence[Any]) -> dict[int, Tensor]:
        values = dict(zip(self.inputs, inputs, strict=True))
        run_instructions(self._program, range(self.first, self.end), values, scalars)
        return values

    def _compare(self, copies: list[Tensor], results: list[Tensor], values: dict[int, Tensor]) -> None:
        layouts = self._program.compiled.layouts
        pointers = {value.untyped_storage().data_ptr() for value in copies}
        for number, value in zip(self.outputs, results, strict=True):
            _check_layout(value, layouts[number], pointers)
            pointers.add(value.untyped_storage().data_ptr())
            _check_values(f"%{number}", values[number], value)
        for number, value in zip(self.inputs, copies, strict=True):
            if number in self._updated:
                _check_values(f"%{number}", values[number], value)


def _check_layout(value: Tensor, layout: TensorLayout, pointers: set[int]) -> None:
    if (
        value.shape != layout.size
        or value.dtype is not layout.device_dtype
        or value.stride() != layout.stride
        or value.storage_offset()
        or value.untyped_storage().nbytes() != layout.nbytes
        or (layout.nbytes and value.untyped_storage().data_ptr() in pointers)
    ):
        raise NumericsMismatch(f"a result is {value.dtype}{list(value.shape)} with other strides than {layout.text()}")


def _check_values(name: str, wanted: Tensor, found: Tensor) -> None:
    if not wanted.numel():
        return
    if wanted.dtype is torch.bool:
        if float((wanted != found).float().mean()) > _DIFFERENT_BOOLEANS:
            raise NumericsMismatch(f"{name} differs")
        return
    if not torch.equal(torch.isfinite(wanted), torch.isfinite(found)):
        raise NumericsMismatch(f"{name} has infinite or NaN elements in other places")
    wide, other = (torch.nan_to_num(each.double(), 0.0, 0.0, 0.0) for each in (wanted, found))
    difference, largest = float((wide - other).abs().max()), float(wide.abs().max())
    if difference > _TOLERANCE[wanted.dtype] * largest + 1e-12:
        raise NumericsMismatch(f"{name} differs by {difference:.3g} where its largest element is {largest:.3g}")
