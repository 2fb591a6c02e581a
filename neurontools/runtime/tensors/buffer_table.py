"""Storage of device tensors: an address that nobody can read, the value behind it, and the end of its life.

A device tensor is a plain torch.Tensor whose storage has an address in a region without access rights. torch makes it
from a DLPack capsule that we relabel: the tensor that backs the capsule lives exactly as long as the device storage, so
a weak reference to it tells when the last view is gone.
"""

from __future__ import annotations

import ctypes
from collections import deque
from threading import RLock
from typing import Any

import torch

from neurontools.runtime.operators.layout import Layout
from neurontools.runtime.tensors.core import Buffer, Core, Tensor, missing
from neurontools.runtime.tensors.memory import Category, CoreMemory

_EXTENSION_DEVICE = 12  # kDLExtDev of DLPack: what torch maps to PrivateUse1
_ADDRESS_STEP = 256
_REGION_BYTES = (1 << 44, 1 << 40, 1 << 36)
_PROT_NONE, _PRIVATE_ANONYMOUS_NORESERVE = 0, 0x4022

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_int64_at = ctypes.c_int64.from_address
_int32_at = ctypes.c_int32.from_address
_to_dlpack: Any = torch._C._to_dlpack
_from_dlpack: Any = torch._C._from_dlpack


class AddressRegion:
    """Addresses that no host code can read: a stray access faults instead of reading something else."""

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        for size in _REGION_BYTES:
            base = libc.mmap(None, size, _PROT_NONE, _PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
            if base not in (None, ctypes.c_void_p(-1).value):
                break
        else:
            raise MemoryError(
                "no address space for the simulated device; raise the limit of virtual memory (ulimit -v)"
            )
        self.first = int(base)
        self.end = self.first + size


class BufferTable:
    """All device storages of the process, by address.

    `lock` is the one lock of the runtime: whoever records, executes, allocates or frees holds it.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.by_address: dict[int, Buffer] = {}
        self._region: AddressRegion | None = None
        self._next_address = 0
        # What dies is told to this list's own method, in any thread, at any moment, also inside a garbage collection:
        # a Ctrl-C that came in Python code called there would be an exception that nobody gets.
        self._dead: deque[Any] = deque()
        self._died = self._dead.append
        self._seeds: dict[torch.dtype, Tensor] = {}

    def create(self, layout: Layout, value: Tensor | None, core: Core) -> tuple[Tensor, Buffer]:
        """A device tensor of this layout and its buffer; the caller accounts the bytes of `value`."""
        seed = self._seeds.get(layout.dtype)
        if seed is None:
            seed = self._seeds[layout.dtype] = torch.empty(1, dtype=layout.dtype, device="cpu")
            if self._region is None:
                self._region = AddressRegion()
                self._next_address = self._region.first
        handle = seed.detach()
        buffer = Buffer(handle, self._died)
        address = self._next_address
        self._next_address = address + _ADDRESS_STEP
        if address in self.by_address or address >= self._region.end:  # type: ignore[union-attr]
            address = self._unused_address()
        buffer.address = address
        buffer.layout = layout
        buffer.core = core
        buffer.value = value
        buffer.graph = None
        buffer.category = Category.TENSORS
        buffer.failure = None
        self.by_address[address] = buffer
        capsule = _to_dlpack(handle)
        pointer = _capsule_pointer(capsule, b"dltensor")
        # struct DLTensor { void* data; int32 device_type, device_id, ndim; uint32 dtype; int64 *shape, *strides; ... }
        _int64_at(pointer).value = address
        _int64_at(pointer + 8).value = _EXTENSION_DEVICE | (core.local_index << 32)
        _int32_at(pointer + 16).value = layout.ndim
        _int64_at(pointer + 24).value = layout.size_address
        _int64_at(pointer + 32).value = layout.stride_address
        return _from_dlpack(capsule), buffer

    def of(self, tensor: Tensor) -> Buffer:
        """The buffer behind a device tensor; RuntimeError for one that is not ours."""
        try:
            return self.by_address[tensor.untyped_storage().data_ptr()]
        except KeyError:
            raise RuntimeError(
                f"a tensor on {tensor.device} has no storage of the Neuron runtime; it was made by another backend"
            ) from None

    def drain(self) -> None:
        """Gives back the bytes of storages that died. Never waits: who holds the lock drains."""
        if not self._dead or not self.lock.acquire(blocking=False):
            return
        try:
            while self._dead:
                buffer = self._dead.popleft()
                if self.by_address.pop(buffer.address, None) is None:
                    continue
                # A pending graph may still read it: then the bytes go back when that graph has run.
                if buffer.graph is None and buffer.value is not None:
                    release(buffer)
        finally:
            self.lock.release()

    def account_of(self, core: Core) -> CoreMemory:
        """The HBM of a core as it is now: what died is no longer in it."""
        self.drain()
        return core.memory

    def renew_lock(self) -> None:
        """In a forked child: a thread that held the lock does not exist here."""
        self.lock = RLock()

    def _unused_address(self) -> int:
        region = self._region
        if region is None:
            raise RuntimeError("no buffer was made yet")
        address = self._next_address
        while True:
            if address >= region.end:
                address = region.first
            if address not in self.by_address:
                self._next_address = address + _ADDRESS_STEP
                return address
            address += _ADDRESS_STEP


def release(buffer: Buffer) -> None:
    """Gives back the bytes of a buffer that has a value."""
    buffer.core.memory.free(buffer.category, buffer.layout.nbytes)
    buffer.value = None


def alias(buffer: Buffer, layout: Layout, offset: int) -> Tensor:
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
