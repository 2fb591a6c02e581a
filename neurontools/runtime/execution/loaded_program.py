"""A program on a core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neurontools.runtime.capture.following import Place
from neurontools.runtime.execution.numerical_errors import NanCheck
from neurontools.runtime.execution.operator_times import OperatorSamples
from neurontools.runtime.execution.profiled import GraphOrigin
from neurontools.runtime.execution.work import work_of
from neurontools.runtime.native.native_program import NativeProgram
from neurontools.runtime.profiling.ring import GraphEntry
from neurontools.runtime.programs.program import Program

_MOST_PREPARED = 16  # a training has few that it executes again and again


class LoadedProgram:
    """A program on a core, with the HBM it takes and what the daemon knows it by."""

    __slots__ = (
        "code_bytes",
        "entry",
        "executions",
        "flops",
        "handle",
        "nan_check",
        "native",
        "origin",
        "output_bytes",
        "output_bytes_total",
        "place",
        "program",
        "run",
        "samples",
        "work",
    )

    def __init__(
        self,
        program: Program,
        code_bytes: int,
        handle: Any,
        origin: GraphOrigin,
        native: NativeProgram | None = None,
    ) -> None:
        compiled = program.compiled
        self.program = program
        self.native = native  # what may be machine code by and by
        self.run = program.run if native is None else native.run
        self.code_bytes = code_bytes
        self.handle = handle
        self.flops = compiled.flops
        self.work = work_of(compiled, program.numerics)
        self.executions = 0
        self.output_bytes = [compiled.layouts[number].nbytes for number in compiled.outputs]
        self.output_bytes_total = sum(self.output_bytes)
        self.nan_check = NanCheck(compiled)
        self.place = Place()
        self.samples = OperatorSamples([instruction.operator.name for instruction in compiled.instructions])
        self.origin = origin
        self.entry: GraphEntry | None = None  # what a profile knows it by

    @property
    def may_sample(self) -> bool:
        """Whether its operators can be timed one by one without another way of computing."""
        return self.native is None or not self.native.is_native


def prepare_profile(programs: Iterable[LoadedProgram]) -> None:
    """Makes what a profile executes of the last of these, so that no step of it has the time that takes."""
    for loaded in list(programs)[-_MOST_PREPARED:]:
        loaded.program.prepare_timed()
