"""Buffers of device tensors, pending graphs, and the state of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from threading import RLock
from typing import Any

import torch

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import OperatorSignature
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.reporting.process_counters import DeviceMemoryCategory
from neurontools.runtime.tensors.storages import storages

Tensor = torch.Tensor


class Buffer:
    """One device storage.

    `value` is the CPU tensor with the bytes, or None until they are computed. `graph` is the pending graph that uses
    the buffer, and `index` its index in that graph. `failure` is the error of the execution that should have computed
    the value.
    """

    __slots__ = ("address", "category", "core", "failure", "graph", "index", "layout", "slot", "value")

    address: int
    category: Category
    core: Core
    failure: BaseException | None
    graph: Graph | None
    index: int
    layout: TensorLayout
    slot: int
    value: Tensor | None

    @property
    def is_alive(self) -> bool:
        """Whether a tensor still uses this storage."""
        return bool(storages.words[self.slot] == self.address)


class Graph:
    """Recorded operators, in order.

    `key` describes the graph in integers: equal graphs have equal keys, by which a cache finds their program. An input
    is -1 - ID of its layout. An operator is the ID of its signature, then the indices of its tensor arguments.
    The key has no values of number arguments (`scalars`) and CPU tensors (`hosts`), which are inputs as well.
    While the ring traces origins, `origins` maps an operator's position to the number of its call stack, and to whether
    the operator belongs to a backward pass.
    """

    __slots__ = ("buffers", "hosts", "key", "origins", "scalars", "signatures")

    def __init__(self) -> None:
        self.key: list[int] = []
        self.signatures: list[OperatorSignature] = []
        self.buffers: list[Buffer] = []
        self.scalars: list[Any] = []
        self.hosts: list[Tensor] = []
        self.origins: dict[int, tuple[int, bool]] = {}

    def index_of(self, buffer: Buffer) -> int:
        """Returns the index of a buffer in this graph. If the graph lacks the buffer, adds the buffer as an input.

        Raises RuntimeError if a buffer to add has no value.
        """
        if buffer.graph is not self:
            if buffer.value is None:
                raise missing(buffer)
            buffer.index = len(self.buffers)
            self.buffers.append(buffer)
            self.key.append(-1 - buffer.layout.id)
            buffer.graph = self  # assigned last, so that an interrupted call leaves it unassigned
        return buffer.index

    def first_use(self, number: int) -> int | None:
        """Returns the position of the first operator that uses a buffer; None if no operator does."""
        at = 0
        for position, signature in enumerate(self.signatures):
            while self.key[at] < 0:
                at += 1
            at += 1
            if number in self.key[at : at + signature.tensor_count]:
                return position
            at += signature.tensor_count
        return None

    def add_result(self, buffer: Buffer) -> None:
        """Adds a new buffer as a result of the operator recorded last."""
        buffer.graph = self
        buffer.index = len(self.buffers)
        self.buffers.append(buffer)

    def remove_interrupted(self) -> None:
        """Removes the operator whose recording an exception has interrupted, if there is one."""
        position = number = scalars = hosts = 0
        complete = (0, 0, 0, 0, 0)
        for count, signature in enumerate(self.signatures, 1):
            while self.key[position : position + 1] and self.key[position] < 0:
                position, number = position + 1, number + 1
            position += 1 + signature.tensor_count
            number += signature.result_count
            scalars += signature.scalar_count
            hosts += signature.host_count
            needed = (position, count, number, scalars, hosts)
            if any(n > len(part) for n, part in zip(needed, self._parts(), strict=True)):
                break
            complete = needed
        for buffer in self.buffers[complete[2] :]:
            buffer.graph = None
        for end, part in zip(complete, self._parts(), strict=True):
            del part[end:]

    def _parts(self) -> tuple[list[Any], ...]:
        return self.key, self.signatures, self.buffers, self.scalars, self.hosts


def missing(buffer: Buffer) -> RuntimeError:
    """Returns the error for reading a value that was never computed."""
    cause = ""
    if buffer.failure is not None:
        reason = str(buffer.failure).partition("\n")[0]  # empty for a KeyboardInterrupt, which has no text
        cause = f" ({type(buffer.failure).__name__}{reason and ': '}{reason})"
    error = RuntimeError(f"this tensor has no value: the execution that should have computed it failed{cause}")
    error.__cause__ = buffer.failure
    return error


@dataclass(slots=True)
class CoreStatistics:
    """Totals of one core since the process began."""

    executions_total: int = 0
    busy_seconds: float = 0.0
    flops_total: int = 0
    numerical_errors_total: int = 0
    failed_executions_total: int = 0
    to_device_bytes: int = 0
    from_device_bytes: int = 0
    compilations_total: int = 0
    compile_seconds: float = 0.0
    collectives_total: int = 0
    collective_seconds: float = 0.0
    collective_bytes: int = 0


@dataclass(slots=True)
class Core:
    """A logical NeuronCore. `local_index` is the N of `xla:N`, `global_index` its number on the host.

    `pending` has the recorded operators. It is empty during the replay of a trace, until `bail_out` writes the replayed
    operators to it.
    """

    local_index: int
    global_index: int
    memory: CoreMemory
    pending: Graph = field(default_factory=Graph)
    bail_out: Callable[[], None] | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    statistics: CoreStatistics = field(default_factory=CoreStatistics)

    @property
    def graph(self) -> Graph:
        """The pending graph with all operators that are not executed yet. Ends the replay of a trace first."""
        if self.bail_out is not None:
            self.bail_out()
        return self.pending


GIB = 1 << 30


class Category(IntEnum):
    """Uses of HBM: the five categories of neuron-monitor."""

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
    """An allocation does not fit the HBM of its core. The text is the table that the Neuron runtime prints."""

    status = NrtStatus.RESOURCE


class CoreMemory:
    """The HBM use of one core by category, in bytes.

    `tensor_peak_bytes` is the peak of `tensor_bytes`; `peak_bytes` is that of all categories. The totals count
    allocations and frees since the start: one allocation for all results of an execution, one free for each tensor.
    Not thread-safe: a caller that changes it holds the runtime's lock. Readers poll, because a training step makes
    hundreds of changes.
    """

    def __init__(self, limit_bytes: int, device_index: int, core_index: int, hbm_index: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.device_index = device_index
        self.core_index = core_index
        self.levels = [0] * len(Category)
        self.total_bytes = 0
        self.peak_bytes = 0
        self.tensor_peak_bytes = 0
        self.allocations_total = 0
        self.allocated_bytes_total = 0
        self.frees_total = 0
        self.retries_total = 0
        self.refusals_total = 0
        self.hbm_index = hbm_index  # index of the HBM stack on its device
        self.write_log: Callable[[CoreMemory, str], str | None] | None = None  # writes a log file; returns its path

    def allocate(self, category: Category, nbytes: int) -> None:
        """Counts bytes as used. If too few bytes are free, raises OutOfDeviceMemory and changes nothing."""
        total = self.total_bytes + nbytes
        if total > self.limit_bytes:
            raise self.refusal(category, nbytes)
        self.levels[category] += nbytes
        self.total_bytes = total
        self.allocations_total += 1
        self.allocated_bytes_total += nbytes
        if total > self.peak_bytes:
            self.peak_bytes = total
        if (tensor_bytes := self.tensor_bytes) > self.tensor_peak_bytes:
            self.tensor_peak_bytes = tensor_bytes

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, parameters included."""
        return self.levels[Category.TENSORS] + self.levels[Category.CONSTANTS]

    def free(self, category: Category, nbytes: int) -> None:
        self.levels[category] -= nbytes
        self.total_bytes -= nbytes
        self.frees_total += 1

    def move(self, source: Category, target: Category, nbytes: int) -> None:
        self.levels[source] -= nbytes
        self.levels[target] += nbytes

    def by_field(self) -> dict[str, int]:
        """Returns the bytes in use by category, under the field names of neurontools.model.device.DeviceMemory."""
        return {field: self.levels[category] for category, field in MEMORY_FIELDS.items()}

    def refusal(self, category: Category, nbytes: int) -> OutOfDeviceMemory:
        """Returns the error for an allocation that does not fit: its size, the core, and the use by category.

        Calls `write_log` if it is set, and names the log file in the error.
        """
        self.refusals_total += 1
        usage, place = dict(_TABLE_ROWS)[category], f"ND {self.device_index}:NC {self.core_index}"
        lines = [
            f"Failed to allocate {size_text(nbytes)} (usage: {usage}) on {place}, current utilization:",
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
    """Formats bytes as the Neuron runtime does in its memory table: 15.855GB, 172.000MB, 1.062KB."""
    for unit, scale in (("GB", GIB), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3f}{unit}"
    return f"{nbytes}B"


def log_stamp() -> str:
    """Returns the local time in the format of the Neuron runtime's log."""
    return time.strftime("%Y-%b-%d %H:%M:%S.0000")


_TENSORS = Category.TENSORS


class BufferTable:
    """All device storages of the process, by address.

    `lock` is the only lock of the runtime. A thread holds it to record, execute, allocate or free. `write_graphs` ends
    the replay of a trace, and so adds the buffers of the trace's temporaries to this table.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.by_address: dict[int, Buffer] = {}
        self._by_slot: dict[int, Buffer] = {}
        self.write_graphs: Callable[[], None] = lambda: None  # the module of the replay sets this function
        storages.used_addresses = lambda: [(b.address, b.layout.span_bytes) for b in self.by_address.values()]

    def create(self, layout: TensorLayout, value: Tensor | None, core: Core) -> tuple[Tensor, Buffer]:
        """Creates a device tensor of this layout and its buffer. The caller counts the bytes of `value` as used."""
        buffer = Buffer()
        tensor, slot, address = storages.tensor(layout, core.local_index)
        buffer.slot = slot
        buffer.address = address
        buffer.layout = layout
        buffer.core = core
        buffer.value = value
        buffer.graph = None
        buffer.category = _TENSORS
        buffer.failure = None
        self.by_address[address] = self._by_slot[slot] = buffer
        return tensor, buffer

    def add_replayed(self, buffer: Buffer) -> None:
        """Adds the buffer of a storage that the replay of a trace created. Ignores a storage that is no longer alive.

        Sets category, value and failure as for a new buffer.
        """
        buffer.category = _TENSORS
        buffer.value = buffer.failure = None
        if buffer.is_alive:
            self.by_address[buffer.address] = self._by_slot[buffer.slot] = buffer

    def buffer_of(self, tensor: Tensor) -> Buffer:
        """Returns the buffer of a device tensor. Raises RuntimeError if another backend made the tensor."""
        buffer = self.at(tensor.untyped_storage().data_ptr())
        if buffer is None:
            raise RuntimeError(
                f"a tensor on {tensor.device} has no storage of the Neuron runtime; it was made by another backend"
            )
        return buffer

    def at(self, address: int) -> Buffer | None:
        """Returns the buffer of the storage at an address, or None if no device storage has this address."""
        buffer = self.by_address.get(address)
        if buffer is None:
            self.write_graphs()
            buffer = self.by_address.get(address)
        return buffer

    def drain(self) -> None:
        """Frees the bytes of storages that are no longer alive. The caller holds the lock."""
        for slot in storages.pop_dead():
            buffer = self._by_slot.pop(slot, None)
            if buffer is None:
                continue
            self.by_address.pop(buffer.address, None)
            # A pending graph may still read the bytes. The executor frees them after that graph has run.
            if buffer.graph is None and buffer.value is not None:
                release(buffer)

    def account_of(self, core: Core) -> CoreMemory:
        """Returns the HBM use of a core, after `drain`.

        Never blocks: if another thread holds the lock, skips `drain`, so dead storages may still count.
        """
        if self.lock.acquire(blocking=False):
            try:
                self.drain()
            finally:
                self.lock.release()
        return core.memory

    def renew_lock(self) -> None:
        """Releases the lock in a forked child, where the thread that held it does not exist.

        The lock stays the same object.
        """
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]


def release(buffer: Buffer) -> None:
    """Frees the bytes of a buffer that has a value."""
    if ring.is_on:
        ring.record_free(buffer.core.global_index, buffer.address, buffer.layout.nbytes, buffer.category)
    buffer.core.memory.free(buffer.category, buffer.layout.nbytes)
    buffer.value = None


def alias(buffer: Buffer, layout: TensorLayout, offset: int) -> Tensor:
    """Returns a CPU view of a buffer's value with this layout. Raises RuntimeError if the buffer has no value."""
    value = buffer.value
    if value is None:
        raise missing(buffer)
    own = buffer.layout
    if layout is own and not offset:
        return value
    if layout.device_dtype is own.device_dtype:
        return value.as_strided(layout.size, layout.stride, offset)
    return reinterpreted(value, layout.device_dtype, layout.size, layout.stride, offset)


def reinterpreted(
    value: Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Tensor:
    """Returns a view of a tensor's bytes with another element type and layout."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(value.untyped_storage(), offset, size, stride)


buffers = BufferTable()
