"""The words in which a runtime reports: outcomes, kinds of errors, categories of memory.

They are the fields of `ExecutionCounters`, `ErrorCounters`, `DeviceMemory` and `HostMemory` in `neurontools.model`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Outcome(StrEnum):
    """How an execution ended; each value is a field of `ExecutionCounters` without its `_total`."""

    COMPLETED = "completed"
    COMPLETED_WITH_ERR = "completed_with_err"
    COMPLETED_WITH_NUM_ERR = "completed_with_num_err"
    TIMED_OUT = "timed_out"
    INCORRECT_INPUT = "incorrect_input"
    FAILED_TO_QUEUE = "failed_to_queue"


class ErrorKind(StrEnum):
    """What kind of error happened; each value is a field of `ErrorCounters` without its `_total`."""

    GENERIC = "generic"
    NUMERICAL = "numerical"
    TRANSIENT = "transient"
    MODEL = "model"
    RUNTIME = "runtime"
    HARDWARE = "hardware"


DeviceMemoryCategory = Literal[
    "constants_bytes",
    "model_code_bytes",
    "model_shared_scratchpad_bytes",
    "runtime_memory_bytes",
    "tensors_bytes",
    "collectives_bytes",
    "dma_rings_bytes",
    "driver_memory_bytes",
    "nonshared_scratchpad_bytes",
    "notifications_bytes",
    "uncategorized_bytes",
]

HostMemoryCategory = Literal[
    "application_memory_bytes",
    "constants_bytes",
    "dma_buffers_bytes",
    "tensors_bytes",
    "dma_rings_bytes",
    "driver_memory_bytes",
    "notifications_bytes",
    "uncategorized_bytes",
]
