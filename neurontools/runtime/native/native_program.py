"""A program that becomes machine code after some executions, and is the program as it was until then and otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.native.archive import Archive, machine_key
from neurontools.runtime.native.background import Builder, Request
from neurontools.runtime.native.loaded_code import SegmentCode, load
from neurontools.runtime.native.segments import segments_of
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiler_flags import CompilerFlags
from neurontools.runtime.programs.program import Program, Run, with_replacements
from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.core import Tensor

WARM_UP_EXECUTIONS = 8
"""Executions of a graph before it is worth a compiler's time; what changes from one to the next is seen in them."""
_LEVEL = 3
_LOOK_EVERY = 8
_MOST_BUILDS = 3


class NativeProgram:
    """One program under --optlevel 3. Everything happens under the runtime's lock."""

    def __init__(self, program: Program, builder: Builder) -> None:
        self.program = program
        self.builder = builder
        self.is_native = False
        self._executions = 0
        self._builds = 0
        self._request: Request | None = None
        self._is_final = False
        self._fixed: list[int] = []
        self._values: list[Any] = []
        self._run: Run | None = None
        self._seen: list[Any] | None = None
        self._changing: set[int] = set()

    @property
    def is_warm(self) -> bool:
        """Whether it was executed often enough to be worth a compiler's time."""
        return self._executions > WARM_UP_EXECUTIONS

    @property
    def is_settled(self) -> bool:
        """Whether it is machine code, or will not be."""
        return self.is_native or self._is_final

    def run(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> list[Tensor]:
        """As Program.run."""
        if self._run is None:
            if not self._is_final:
                self._advance(scalars)
            if self._run is None:
                return self.program.run(inputs, scalars, hosts, generator)
        if [scalars[index] for index in self._fixed] != self._values:
            self._surprised(scalars)
            return self.program.run(inputs, scalars, hosts, generator)
        outputs = self._run(inputs, scalars, hosts, generator)
        if self.is_native:  # and not refused meanwhile
            metrics.increment("MachineCodeExecution")
        return outputs

    def _advance(self, scalars: Sequence[Any]) -> None:
        """Once an execution, until there is machine code."""
        if self._seen is None:
            self._seen = [*scalars]
        self._changing.update(i for i, (old, new) in enumerate(zip(self._seen, scalars, strict=True)) if old != new)
        self._executions += 1
        if self._request is not None:
            if not self._executions % _LOOK_EVERY:
                self._look(scalars)
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
                self._take(found, scalars)
                return
        if not segments_of(compiled, self._changing):
            self._refuse("none of its operators can be")
        elif self.builder.is_free:
            self._builds += 1
            self._request = self.builder.begin(compiled, key, scalars, self._changing)
            if self._request is None:
                self._is_final = True

    def _look(self, scalars: Sequence[Any]) -> None:
        archive = None if self._request is None else self.builder.result(self._request)
        if archive is not None:
            self._request = None
            self._take(archive, scalars)

    def _take(self, archive: Archive, scalars: Sequence[Any]) -> None:
        if archive.refusal:
            self._refuse(archive.refusal)
            return
        try:
            codes = [
                SegmentCode(self.program, segment, load(code, archive.module), self._refuse)
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
            self._surprised(scalars)

    def _surprised(self, scalars: Sequence[Any]) -> None:
        """Numbers that were the same until now are not: then machine code is made anew that is given them."""
        different = {i for i, old in zip(self._fixed, self._values, strict=True) if scalars[i] != old}
        metrics.increment("MachineCodeMiss")
        if self._builds < _MOST_BUILDS:
            self._changing |= different
            self._run, self.is_native, self._seen = None, False, None

    def _refuse(self, reason: str) -> None:
        self._run, self.is_native, self._is_final = None, False, True
        count = len(self.program.compiled.instructions)
        warn_once("machine code", f"--optlevel 3: a graph of {count} operators runs as without it: {reason}")


class MachineCode:
    """What has machine code in this process: programs compiled with --optlevel 3."""

    def __init__(self, environment: Mapping[str, str], cache: CompileCache) -> None:
        self.environment = environment
        self.cache = cache
        self._builder: Builder | None = None
        self._programs: WeakSet[NativeProgram] = WeakSet()

    @property
    def is_settled(self) -> bool:
        """Whether each program that was executed often enough is machine code, or will not be, and there is one."""
        settled = [program.is_settled for program in self._programs if program.is_warm]
        return bool(settled) and all(settled)

    def remark(self, flags: CompilerFlags) -> str:
        """What a profile says of a graph besides why it is there."""
        return "; not as machine code (--optlevel 3) while it is profiled" if flags.optlevel == _LEVEL else ""

    def of(self, program: Program, flags: CompilerFlags) -> NativeProgram | None:
        """What may become machine code of a program; None where nobody asked for it, or numbers are rounded."""
        if flags.optlevel != _LEVEL:
            return None
        if not program.numerics.is_plain:
            warn_once(
                "machine code of casts", "--optlevel 3 does nothing where numbers are rounded (--auto-cast, bf16)"
            )
            return None
        if self._builder is None or self._builder.flags != flags:
            self._builder = Builder(self.environment, self.cache, flags)
        made = NativeProgram(program, self._builder)
        self._programs.add(made)
        return made
