"""The graph that is being recorded on one core: operators whose results nobody has computed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.runtime.tensors.buffer import Buffer, missing

if TYPE_CHECKING:
    from neurontools.runtime.operators.signature import Signature


class Graph:
    """Operators in the order of their recording.

    `key` says everything about the structure in small integers: for each input -1 - its layout's id, for each operator
    its signature's id and the indices of the buffers it gets. `scalars` and `hosts` are the inputs that are not device
    tensors.
    """

    __slots__ = ("buffers", "hosts", "key", "scalars", "signatures")

    def __init__(self) -> None:
        self.key: list[int] = []
        self.signatures: list[Signature] = []
        self.buffers: list[Buffer] = []
        self.scalars: list[Any] = []
        self.hosts: list[torch.Tensor] = []

    def index_of(self, buffer: Buffer) -> int:
        """The number of a buffer in this graph; it becomes an input if the graph does not know it."""
        if buffer.graph is not self:
            if buffer.value is None:
                raise missing(buffer)
            buffer.graph = self
            buffer.index = len(self.buffers)
            self.buffers.append(buffer)
            self.key.append(-1 - buffer.layout.id)
        return buffer.index

    def add_result(self, buffer: Buffer) -> None:
        """Makes a new buffer the result of the operator recorded last."""
        buffer.graph = self
        buffer.index = len(self.buffers)
        self.buffers.append(buffer)
