"""Whether an execution produced NaN: what EXEC_COMPLETED_WITH_NUM_ERR tells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.tensors.core import Buffer, Tensor
from neurontools.runtime.tensors.memory import Category

_REST = 99  # times as long as a look took


class NanCheck:
    """Looks for NaN in what one compiled graph computes: its results and what it updates in place.

    Where an execution updates parameters, of the tensors updated in place only these are read: optimizer state is twice
    their size, and NaN in it is in the parameter after the same step.

    Results of one element, as a loss is, are looked at in each execution. Reading all the others takes up to a tenth of
    a step: it happens at the first execution, then in a hundredth of the time, and in each execution from the first NaN
    on until there is none any more.
    """

    __slots__ = ("_larger", "_rests_until_seconds", "_single", "_written")

    def __init__(self, compiled: CompiledGraph) -> None:
        def has_floats(number: int) -> bool:
            layout = compiled.layouts[number]
            return layout.device_dtype.is_floating_point and layout.extent > 0 and layout.device_dtype.itemsize > 1

        updated = {number for instruction in compiled.instructions for number in instruction.written}
        results = [position for position, number in enumerate(compiled.outputs) if has_floats(number)]
        self._single = [p for p in results if compiled.layouts[compiled.outputs[p]].extent == 1]
        self._larger = [position for position in results if position not in self._single]
        self._written = [number for number in compiled.inputs if number in updated and has_floats(number)]
        self._rests_until_seconds = 0.0

    def finds(self, outputs: Sequence[Tensor], listed: Sequence[Buffer], *, is_exact: bool) -> bool:
        """Whether NaN is in the outputs, or in those of the graph's buffers that were updated.

        `is_exact`: everything is read.
        """
        for position in self._single:
            value = outputs[position].item()
            if value != value:
                return True
        began = time.perf_counter()
        if began < self._rests_until_seconds and not is_exact:
            return False
        is_found = self._reads_nan(outputs, listed)
        ended = time.perf_counter()
        self._rests_until_seconds = 0.0 if is_found else ended + _REST * (ended - began)
        return is_found

    def _reads_nan(self, outputs: Sequence[Tensor], listed: Sequence[Buffer]) -> bool:
        values = [outputs[position] for position in self._larger]
        if self._written:
            updated = [listed[number] for number in self._written]
            constants = [buffer for buffer in updated if buffer.category is Category.CONSTANTS]
            values += [buffer.value for buffer in constants or updated if buffer.value is not None]
        if not values:
            return False
        # A norm is NaN just if an element is: infinities and overflow make it infinite. One call, one read of each.
        norms: Any = torch._foreach_norm(values)
        return any(norm != norm for norm in (each.item() for each in norms))
