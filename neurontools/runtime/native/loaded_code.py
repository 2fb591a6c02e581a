"""Machine code in this process: loaded from memory, and held against the operators at its first execution."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.native.segments import Segment
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.programs.program import Program, run_instructions
from neurontools.runtime.tensors.core import Tensor

_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
_DIFFERENT_BOOLEANS = 1e-3
_LONGEST_SECONDS = 2.0  # torch's runner keeps the interpreter, and a process that tells nothing for long looks dead


class NotAsComputed(RuntimeError):
    """Machine code whose results are not those of the operators; the text says which."""


def load(code: bytes, name: str) -> Any:
    """What runs a shared object. It is loaded from memory: what was verified can't be another file by then.

    The descriptor stays open with the code, because the loader takes two objects of one path for the same.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        rest = memoryview(code)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        return torch._C._aoti.AOTIModelContainerRunnerCpu(f"/proc/self/fd/{descriptor}", 1)
    except BaseException:
        os.close(descriptor)
        raise


class SegmentCode:
    """The machine code of one segment, in the place of its instructions.

    The first execution answers what the operators compute. Where the machine code fails, or differs in more than
    rounding, `refuse` is told why, and the operators go on computing.
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
        refusal, made, began = "", None, time.thread_time()
        try:
            made = self._computed([*copies], scalars)
        except RuntimeError as error:
            refusal = str(error).partition("\n")[0]
        if time.thread_time() - began > _LONGEST_SECONDS:
            refusal = f"it takes more than {_LONGEST_SECONDS:.0f} s of a CPU, for which other threads of Python wait"
        values = self._values(inputs, scalars)
        try:
            if made is not None:
                self._compare(copies, made, values)
                _check_fresh(made, self._computed([*copies], scalars))
        except NotAsComputed as error:
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
        made: list[Tensor] = self._runner.run(inputs)
        return made

    def _by_operators(self, inputs: list[Tensor], scalars: Sequence[Any]) -> list[Tensor]:
        values = self._values(inputs, scalars)
        return [values[number] for number in self.outputs]

    def _values(self, inputs: list[Tensor], scalars: Sequence[Any]) -> dict[int, Tensor]:
        values = dict(zip(self.inputs, inputs, strict=True))
        run_instructions(self._program, range(self.first, self.end), values, scalars)
        return values

    def _compare(self, copies: list[Tensor], made: list[Tensor], values: dict[int, Tensor]) -> None:
        layouts = self._program.compiled.layouts
        seen = {value.untyped_storage().data_ptr() for value in copies}
        for number, value in zip(self.outputs, made, strict=True):
            _check_layout(value, layouts[number], seen)
            seen.add(value.untyped_storage().data_ptr())
            _check_values(f"%{number}", values[number], value)
        for number, value in zip(self.inputs, copies, strict=True):
            if number in self._updated:
                _check_values(f"%{number}", values[number], value)


def _check_fresh(made: list[Tensor], again: list[Tensor]) -> None:
    """Each execution has to have results of its own: they may be changed in place later."""
    places = {value.untyped_storage().data_ptr() for value in made if value.numel()}
    if any(value.untyped_storage().data_ptr() in places for value in again):
        raise NotAsComputed("a result is the same memory each time")


def _check_layout(value: Tensor, layout: TensorLayout, seen: set[int]) -> None:
    if (
        value.shape != layout.size
        or value.dtype is not layout.device_dtype
        or value.stride() != layout.stride
        or value.storage_offset()
        or value.untyped_storage().nbytes() != layout.nbytes
        or (layout.nbytes and value.untyped_storage().data_ptr() in seen)
    ):
        raise NotAsComputed(f"a result is {value.dtype}{list(value.shape)} with other strides than {layout.text()}")


def _check_values(name: str, wanted: Tensor, found: Tensor) -> None:
    if not wanted.numel():
        return
    if wanted.dtype is torch.bool:
        if float((wanted != found).float().mean()) > _DIFFERENT_BOOLEANS:
            raise NotAsComputed(f"{name} differs")
        return
    if not torch.equal(torch.isfinite(wanted), torch.isfinite(found)):
        raise NotAsComputed(f"{name} is infinite or NaN elsewhere")
    wide, other = (torch.nan_to_num(each.double(), 0.0, 0.0, 0.0) for each in (wanted, found))
    difference, largest = float((wide - other).abs().max()), float(wide.abs().max())
    if difference > _TOLERANCE[wanted.dtype] * largest + 1e-12:
        raise NotAsComputed(f"{name} differs by {difference:.3g} where its largest element is {largest:.3g}")
