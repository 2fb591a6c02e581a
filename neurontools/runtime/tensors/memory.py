"""The HBM of one core, accounted by category."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

import torch

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.reporting.process_counters import DeviceMemoryCategory

GIB = 1 << 30


class Category(IntEnum):
    """What bytes of HBM are used for; the five categories of neuron-monitor."""

    CONSTANTS = 0
    MODEL_CODE = 1
    SCRATCHPAD = 2
    RUNTIME = 3
    TENSORS = 4


MEMORY_FIELDS: dict[Category, DeviceMemoryCategory] = {
    Category.CONSTANTS: "constants_bytes",
    Category.MODEL_CODE: "model_code_bytes",
    Category.SCRATCHPAD: "model_shared_scratchpad_bytes",
    Category.RUNTIME: "runtime_memory_bytes",
    Category.TENSORS: "tensors_bytes",
}
_TABLE_ROWS = (
    (Category.MODEL_CODE, "model code"),
    (Category.CONSTANTS, "model constants"),
    (Category.TENSORS, "tensors"),
    (Category.SCRATCHPAD, "shared scratchpad"),
    (Category.RUNTIME, "runtime"),
)


class OutOfDeviceMemory(torch.OutOfMemoryError):
    """An allocation does not fit the HBM of its core; the text is the table that the Neuron runtime prints."""

    status = NrtStatus.RESOURCE


class CoreMemory:
    """Levels of one core's HBM in bytes. Not thread-safe: the runtime's lock is held by whoever changes it.

    Nobody is told of a change: a training step makes hundreds, and who wants the levels looks at them.
    """

    def __init__(
        self,
        limit_bytes: int,
        device_index: int,
        core_index: int,
        hbm_index: int = 0,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.device_index = device_index
        self.core_index = core_index
        self.levels = [0] * len(Category)
        self.total_bytes = 0
        self.peak_bytes = 0
        self.hbm_index = hbm_index  # the HBM stack on its device
        self.write_log: Callable[[CoreMemory, str], str | None] | None = None  # answers the path of the file

    def allocate(self, category: Category, nbytes: int) -> None:
        """Takes bytes; OutOfDeviceMemory when the core has not so many left, and then nothing is taken."""
        total = self.total_bytes + nbytes
        if total > self.limit_bytes:
            raise self.refusal(category, nbytes)
        self.levels[category] += nbytes
        self.total_bytes = total
        if total > self.peak_bytes:
            self.peak_bytes = total

    def free(self, category: Category, nbytes: int) -> None:
        """Gives bytes back."""
        self.levels[category] -= nbytes
        self.total_bytes -= nbytes

    def move(self, source: Category, target: Category, nbytes: int) -> None:
        """Accounts bytes to another category."""
        self.levels[source] -= nbytes
        self.levels[target] += nbytes

    def by_field(self) -> dict[str, int]:
        """The levels under the field names of neurontools.model.device.DeviceMemory."""
        return {field: self.levels[category] for category, field in MEMORY_FIELDS.items()}

    def refusal(self, category: Category, nbytes: int) -> OutOfDeviceMemory:
        """The error for an allocation that does not fit: size, place and who holds what."""
        usage = dict(_TABLE_ROWS)[category]
        lines = [
            (
                f"Failed to allocate {size_text(nbytes)} (usage: {usage}) on ND {self.device_index}:NC "
                f"{self.core_index}, current utilization:"
            ),
            f"\t* total: {size_text(self.total_bytes)} of {size_text(self.limit_bytes)}",
        ]
        lines += [f"\t* {name}: {size_text(self.levels[row])}" for row, name in _TABLE_ROWS if self.levels[row]]
        log_path = self.write_log(self, "\n".join(lines)) if self.write_log is not None else None
        if log_path is not None:
            lines.append(f"\t* by tensor: {log_path}")
        return OutOfDeviceMemory(
            "\n".join(lines)
            + f"\nNRT_RESOURCE({int(NrtStatus.RESOURCE)}): not enough HBM for {nbytes} bytes; use a smaller batch, "
            "gradient checkpointing, or bfloat16"
        )


def size_text(nbytes: int) -> str:
    """Bytes as the Neuron runtime prints them in its memory table: 15.855GB, 172.000MB, 1.062KB."""
    for unit, scale in (("GB", GIB), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3f}{unit}"
    return f"{nbytes}B"


def log_stamp() -> str:
    """The time as the lines of the Neuron runtime's log have it."""
    return time.strftime("%Y-%b-%d %H:%M:%S.0000")
