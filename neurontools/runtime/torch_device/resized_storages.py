"""`storage.resize_(0)` and back to its size, by which FSDP2 frees whole parameters while nobody uses them.

The storage keeps its address and its tensors; its bytes in HBM go and come back, without their content. Other sizes
need an allocator in C++.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from neurontools.runtime.tensors.buffer_table import buffers, release
from neurontools.runtime.tensors.core import Buffer
from neurontools.runtime.tensors.device import device

_freed: dict[int, Buffer] = {}
"""Storages that have no bytes, by address; one that died meanwhile may still be here."""


class StorageFreed(RuntimeError):
    """The storage was resized to 0 bytes."""


def install() -> None:
    """Makes storages of the device resizable so; once a process."""
    kind: Any = torch.UntypedStorage
    resize, sizes = kind.resize_, {name: getattr(kind, name) for name in ("size", "nbytes", "__len__")}
    full_size = sizes["nbytes"]  # the others ask it

    @functools.wraps(resize)
    def resize_(self: Any, size: int) -> Any:
        if self.device.type != device.name:
            return resize(self, size)
        buffer = buffers.at(self.data_ptr())
        if buffer is None:
            raise RuntimeError(f"{device.name}: this storage was made by another backend; make a new tensor")
        if size == 0:
            _free(buffer)
        elif size == full_size(self):
            _allocate(buffer)
        else:
            raise NotImplementedError(
                f"{device.name}: a storage of {full_size(self)} bytes on this device can be resized to 0 bytes and "
                f"back, not to {size}; make a new tensor"
            )
        return self

    def told(original: Any) -> Any:
        @functools.wraps(original)
        def size(self: Any) -> int:
            if _freed and self.device.type == device.name and _is_freed_at(self.data_ptr()):
                return 0
            full: int = original(self)
            return full

        return size

    kind.resize_ = resize_
    for name, original in sizes.items():
        setattr(kind, name, told(original))


def _is_freed_at(address: int) -> bool:
    found = _freed.get(address)
    return found is not None and found.is_alive


def _is_freed(buffer: Buffer) -> bool:
    return _freed.get(buffer.address) is buffer


def _free(buffer: Buffer) -> None:
    device.flush(buffer.core, "StorageFreed")
    with buffers.lock:
        if buffer.value is not None:
            release(buffer)
        buffer.failure = StorageFreed("its storage was resized to 0 bytes")
        for address in [address for address, each in _freed.items() if not each.is_alive]:
            del _freed[address]
        _freed[buffer.address] = buffer


def _allocate(buffer: Buffer) -> None:
    with buffers.lock:
        if not _is_freed(buffer):
            return
        layout = buffer.layout
        buffer.core.memory.allocate(buffer.category, layout.nbytes)
        buffer.value = torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype, device="cpu").zero_()
        buffer.failure = None
        del _freed[buffer.address]
