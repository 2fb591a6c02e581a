"""One NeuronCore of this process, the graph pending on it, and the buffers in both: records that know each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import OperatorSignature
from neurontools.runtime.tensors.memory import Category, CoreMemory
from neurontools.runtime.tensors.storages import storages

Tensor = torch.Tensor


class Buffer:
    """One device storage.

    `value` is the CPU tensor with the bytes, None while they are still to be computed. `graph` and `index` say where
    the pending graph knows it. `failure` is why it will never have a value.
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
        """Whether a tensor still has this storage."""
        return bool(storages.words[self.slot] == self.address)


class Graph:
    """Operators in the order of their recording.

    `key` says everything about the structure in small integers: for each input -1 - its layout's id, for each operator
    its signature's id and the indices of the buffers it gets. `scalars` and `hosts` are the inputs that are not device
    tensors. `origins` is where operators were recorded, by position, as far as a profile has looked.
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
        """The number of a buffer in this graph; it becomes an input if the graph does not know it."""
        if buffer.graph is not self:
            if buffer.value is None:
                raise missing(buffer)
            buffer.index = len(self.buffers)
            self.buffers.append(buffer)
            self.key.append(-1 - buffer.layout.id)
            buffer.graph = self  # last, so that an interrupt leaves no buffer with a number that the graph has not
        return buffer.index

    def add_result(self, buffer: Buffer) -> None:
        """Makes a new buffer the result of the operator recorded last."""
        buffer.graph = self
        buffer.index = len(self.buffers)
        self.buffers.append(buffer)

    def mend(self) -> None:
        """Takes out the operator that an exception in the middle of its recording has left without its end, if any."""
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
    """The error for reading a value that was never computed."""
    cause = ""
    if buffer.failure is not None:
        said = str(buffer.failure).partition("\n")[0]  # of an interrupt: nothing
        cause = f" ({type(buffer.failure).__name__}{said and ': '}{said})"
    error = RuntimeError(f"this tensor has no value: the execution that should have computed it failed{cause}")
    error.__cause__ = buffer.failure
    return error


@dataclass(slots=True)
class CoreStatistics:
    """What one core did since the process began."""

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

    `pending` is what was recorded. While a step is followed that came before, it is empty, and `break_off` writes it.
    """

    local_index: int
    global_index: int
    memory: CoreMemory
    pending: Graph = field(default_factory=Graph)
    break_off: Callable[[], None] | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    statistics: CoreStatistics = field(default_factory=CoreStatistics)

    @property
    def graph(self) -> Graph:
        """The operators that wait, all of them."""
        if self.break_off is not None:
            self.break_off()
        return self.pending
