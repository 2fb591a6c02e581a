"""What executions ask of a device, whatever its speed: the same on the chip as here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.numerics import Numerics


@dataclass(slots=True)
class Work:
    """Work of one execution of a program, or of many.

    `flops_by_dtype` has the element types in which the device multiplies, as torch names them: what --auto-cast narrows
    is counted as what it becomes. `tensors_total` are the inputs and outputs that each execution is given, and
    `moved_bytes` their sizes: the least that an execution reads and writes in HBM.
    """

    flops_by_dtype: Counter[str] = field(default_factory=Counter)
    tensors_total: int = 0
    moved_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of all element types."""
        return self.flops_by_dtype.total()

    def add(self, other: Work, times: int) -> None:
        """Adds so many executions of another."""
        for dtype, flops in other.flops_by_dtype.items():
            self.flops_by_dtype[dtype] += flops * times
        self.tensors_total += other.tensors_total * times
        self.moved_bytes += other.moved_bytes * times


def work_of(compiled: CompiledGraph, numerics: Numerics) -> Work:
    """The work of one execution."""
    work = Work(tensors_total=len(compiled.inputs) + len(compiled.outputs))
    for dtype, flops in compiled.flops_by_dtype.items():
        work.flops_by_dtype[numerics.multiplied(dtype)] += flops
    work.moved_bytes = sum(compiled.layouts[number].nbytes for number in (*compiled.inputs, *compiled.outputs))
    return work
