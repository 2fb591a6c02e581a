"""Storage of device tensors: the value behind its address, and the end of its life.

A device tensor is a plain torch.Tensor whose storage has an address in a region without access rights.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

import torch

from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.core import Buffer, Core, Tensor, missing
from neurontools.runtime.tensors.memory import Category, CoreMemory
from neurontools.runtime.tensors.storages import storages

_TENSORS = Category.TENSORS


class BufferTable:
    """All device storages of the process, by address.

    `lock` is the one lock of the runtime: whoever records, executes, allocates or frees holds it. `write_graphs` makes
    known what belongs to a graph that is not written yet.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.by_address: dict[int, Buffer] = {}
        self._by_slot: dict[int, Buffer] = {}
        self.write_graphs: Callable[[], None] = _nothing
        storages.taken_addresses = lambda: [(b.address, b.layout.span_bytes) for b in self.by_address.values()]

    def create(self, layout: TensorLayout, value: Tensor | None, core: Core) -> tuple[Tensor, Buffer]:
        """A device tensor of this layout and its buffer; the caller accounts the bytes of `value`."""
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

    def know(self, buffer: Buffer) -> None:
        """Takes in a buffer for a storage that was made without one; one that died already needs nobody to know it.

        Its category, value and failure are those of a new one.
        """
        buffer.category = _TENSORS
        buffer.value = buffer.failure = None
        if buffer.is_alive:
            self.by_address[buffer.address] = self._by_slot[buffer.slot] = buffer

    def of(self, tensor: Tensor) -> Buffer:
        """The buffer behind a device tensor; RuntimeError for one that is not ours."""
        buffer = self.at(tensor.untyped_storage().data_ptr())
        if buffer is None:
            raise RuntimeError(
                f"a tensor on {tensor.device} has no storage of the Neuron runtime; it was made by another backend"
            )
        return buffer

    def at(self, address: int) -> Buffer | None:
        """The buffer of the storage at an address; None where the runtime has made none."""
        buffer = self.by_address.get(address)
        if buffer is None:
            self.write_graphs()
            buffer = self.by_address.get(address)
        return buffer

    def drain(self) -> None:
        """Gives back the bytes of storages that died; the lock is held."""
        for slot in storages.died():
            buffer = self._by_slot.pop(slot, None)
            if buffer is None:
                continue
            self.by_address.pop(buffer.address, None)
            # A pending graph may still read it: then the bytes go back when that graph has run.
            if buffer.graph is None and buffer.value is not None:
                release(buffer)

    def account_of(self, core: Core) -> CoreMemory:
        """The HBM of a core as it is now: what died is no longer in it. Never waits: who holds the lock drains."""
        if self.lock.acquire(blocking=False):
            try:
                self.drain()
            finally:
                self.lock.release()
        return core.memory

    def renew_lock(self) -> None:
        """In a forked child: a thread that held the lock does not exist here. The lock stays the same object."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]


def _nothing() -> None:
    """No graph is unwritten."""


def release(buffer: Buffer) -> None:
    """Gives back the bytes of a buffer that has a value."""
    if ring.is_on:
        ring.record_free(buffer.core.global_index, buffer.address, buffer.layout.nbytes, buffer.category)
    buffer.core.memory.free(buffer.category, buffer.layout.nbytes)
    buffer.value = None


def alias(buffer: Buffer, layout: TensorLayout, offset: int) -> Tensor:
    """A CPU view of a buffer's value with this layout; shares the bytes."""
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
    """A view of the same bytes as elements of another type."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(value.untyped_storage(), offset, size, stride)


buffers = BufferTable()
