"""Saving, sharing and resizing storages of the device.

FSDP2 frees unused parameters with `storage.resize_(0)` and later resizes them back. The storage keeps its address and
tensors; its HBM is freed and allocated again, without the old content. Resizing to other sizes would need an allocator
in C++.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from neurontools.runtime.capture.eager import device_tensor, host_value
from neurontools.runtime.tensors.buffers import Buffer, Tensor, buffers, release
from neurontools.runtime.tensors.device import device


def patch_serialization(name: str) -> None:
    """Lets torch save, load, copy and pickle storages of the device with this name. Call once per process."""
    torch.serialization.register_package(5, _tag, _restore)
    _patch_storage()
    tensor: Any = Tensor
    # A simulated device needs no pinned memory, and torch lets only C++ code provide it.
    tensor.pin_memory = lambda self, *_device, **_named_device: self
    _patch_pickle()


def _tag(storage: Any) -> str | None:
    where = storage.device
    return f"{device.name}:{where.index or 0}" if where.type == device.name else None


def _restore(storage: Any, location: str) -> Any:
    if str(location).partition(":")[0] != device.name:
        return None
    untyped = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
    if untyped.device.type == device.name:
        return untyped
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).clone()
    return device_tensor(flat, device.core(torch.device(location))).untyped_storage()


def _bytes_of(storage: Any) -> Tensor:
    flat: Tensor = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return host_value(flat.set_(storage))


def _elements_of(storage: Any) -> Tensor:
    """Returns a device tensor with all elements of a device storage, in the element type of the storage."""
    buffer = buffers.at(storage.data_ptr())
    dtype = torch.uint8 if buffer is None else buffer.layout.dtype
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))


def _patch_storage() -> None:
    kind: Any = torch.UntypedStorage
    original_to, original_new, original_clone = kind.to, kind.__new__, kind.clone
    original_cpu = kind.cpu

    def to(self: Any, *arguments: Any, **keywords: Any) -> Any:
        target = keywords.get("device", arguments[0] if arguments else None)
        if target is not None and not isinstance(target, bool) and torch.device(target).type == device.name:
            return _restore(self, str(torch.device(target)))
        if self.device.type == device.name:
            return _bytes_of(self).clone().untyped_storage()
        return original_to(self, *arguments, **keywords)

    def new(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        target = keywords.get("device")
        if target is None or torch.device(target).type != device.name:
            return original_new(cls, *arguments, **keywords)
        size = arguments[0] if arguments else keywords.get("size", 0)
        if isinstance(size, int):
            flat = torch.empty(size, dtype=torch.uint8, device="cpu")
        else:
            flat = torch.tensor(size, dtype=torch.uint8, device="cpu")
        return device_tensor(flat, device.core(torch.device(target))).untyped_storage()

    def clone(self: Any) -> Any:
        if self.device.type != device.name:
            return original_clone(self)
        return _elements_of(self).clone().untyped_storage()

    def cpu(self: Any) -> Any:
        if self.device.type != device.name:
            return original_cpu(self)
        return _bytes_of(self).clone().untyped_storage()

    def new_like(self: Any) -> Any:
        return kind(0, device=self.device)

    def refuse(name: str, instead: str) -> None:
        original = getattr(kind, name)

        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.device.type == device.name:
                raise NotImplementedError(f"{device.name}: UntypedStorage.{name} is not on this device; {instead}")
            return original(self, *arguments, **keywords)

        setattr(kind, name, method)

    kind.to, kind.__new__, kind.clone, kind.cpu, kind.new = to, new, clone, cpu, new_like
    for name in ("byteswap", "_byteswap"):
        refuse(name, "swap the bytes of .cpu()")
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
        refuse(name, "share the memory of .cpu()")


class _SharedStorages(threading.local):
    """Per thread, while torch.save or torch.load runs: copied storages by the original's address of its C++ object.

    The copies of tensors that share a storage share a storage too. Each entry keeps the original alive.
    """

    copies: dict[int, tuple[Any, Any]] | None = None

    def copy_of(self, storage: Any, make_copy: Callable[[], Any]) -> Any:
        if self.copies is None:
            return make_copy()
        if storage._cdata not in self.copies:
            self.copies[storage._cdata] = storage, make_copy()
        return self.copies[storage._cdata][1]


_shared = _SharedStorages()


def _patch_pickle() -> None:
    """Pickles device tensors as torch does for `xla`: as CPU tensors, which any torch can load.

    The CPU tensors have the strides, offsets and shared storages of the device tensors, and loading restores them.
    """
    kind: Any = torch.Tensor
    utilities: Any = torch._utils
    original_reduce, original_copy = kind._reduce_ex_internal, kind.__deepcopy__
    original_rebuild = utilities._rebuild_device_tensor_from_cpu_tensor

    def reduce_ex(self: Tensor, protocol: int) -> Any:
        if self.device.type != device.name or type(self) not in (torch.Tensor, torch.nn.Parameter):
            return original_reduce(self, protocol)
        storage = self.untyped_storage()
        if self.is_conj() or self.is_neg() or not storage.nbytes():
            value = self.detach().cpu()
        else:
            copied = _shared.copy_of(storage, lambda: _elements_of(storage).cpu().untyped_storage())
            value = torch.empty(0, dtype=self.dtype, device="cpu")
            value.set_(copied, self.storage_offset(), self.shape, self.stride())
        return rebuild, (value, self.dtype, str(self.device), self.requires_grad)

    # torch.load accepts a function by its module and name, so this function has those of torch's function.
    @functools.wraps(original_rebuild)
    def rebuild(data: Tensor, dtype: torch.dtype, where: str, requires_grad: bool) -> Any:
        target = torch.device(utilities._get_restore_location(where))
        storage = data.untyped_storage()
        if target.type != device.name or data.dtype is not dtype or not data.is_cpu or not storage.nbytes():
            return original_rebuild(data, dtype, where, requires_grad)

        def to_device() -> Any:
            count = storage.nbytes() // dtype.itemsize
            flat = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (count,), (1,))
            return flat.to(target).untyped_storage()

        tensor = torch.empty(0, dtype=dtype, device=target)
        tensor.set_(_shared.copy_of(storage, to_device), data.storage_offset(), data.shape, data.stride())
        tensor.requires_grad = requires_grad
        return tensor

    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
        if (
            self.device.type != device.name
            or not self.is_leaf
            or type(self) is not torch.Tensor
            or self.is_conj()
            or self.is_neg()
        ):
            return original_copy(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            storage = copy.deepcopy(self.untyped_storage(), memo)
            copied = torch.empty(0, dtype=self.dtype, device=self.device)
            copied.set_(storage, self.storage_offset(), self.shape, self.stride())
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        memo[id(self)] = copied
        return copied

    kind._reduce_ex_internal, kind.__deepcopy__ = reduce_ex, deepcopy
    utilities._rebuild_device_tensor_from_cpu_tensor = rebuild
    serialization: Any = torch.serialization
    for name in ("save", "load"):
        function = _sharing_storages(getattr(serialization, name))
        setattr(serialization, name, function)
        setattr(torch, name, function)


def _sharing_storages(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        outer, _shared.copies = _shared.copies, {}
        try:
            return function(*arguments, **keywords)
        finally:
            _shared.copies = outer

    return call


def patch_tensor_sharing(received: Callable[[Tensor, str, bool, bool], Tensor]) -> None:
    """Lets torch.multiprocessing send device tensors between processes. Call once per process.

    The receiving process calls `received(value, device, requires_grad, is_parameter)`, a function of a module.
    """

    def reduce(tensor: Tensor) -> Any:
        """Sends a CPU tensor in shared memory, which the receiver moves to its own device."""
        if tensor.device.type != device.name:
            stock: Any = reductions.reduce_tensor
            return stock(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError("a tensor with a gradient's history can't be sent to another process; detach() it first")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return received, (tensor.detach().cpu(), str(tensor.device), tensor.requires_grad, is_parameter)

    for kind in (Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)
    original: Any = Tensor.share_memory_

    def share_memory_(self: Tensor) -> Tensor:
        if self.device.type == device.name:
            raise _unshared()
        shared: Tensor = original(self)
        return shared

    Tensor.share_memory_ = share_memory_  # type: ignore[method-assign]


def _unshared() -> NotImplementedError:
    return NotImplementedError(
        f"{device.name}: the memory of a NeuronCore can't be shared with other processes; share the CPU tensor and "
        f"move it with .to({device.name!r}), or send the tensor through a queue, which copies it"
    )


_freed: dict[int, Buffer] = {}
"""Storages resized to 0 bytes, by address. Some may be dead; check `is_alive`."""


class StorageFreed(RuntimeError):
    """The storage was resized to 0 bytes."""


def patch_storage_resize() -> None:
    """Lets `resize_` free a device storage (0 bytes) and allocate it again (full size). Call once per process."""
    kind: Any = torch.UntypedStorage
    resize, sizes = kind.resize_, {name: getattr(kind, name) for name in ("size", "nbytes", "__len__")}
    full_size = sizes["nbytes"]  # unpatched; also returns the full size of a freed storage

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

    def zero_if_freed(original: Any) -> Any:
        @functools.wraps(original)
        def size(self: Any) -> int:
            if _freed and self.device.type == device.name:
                found = _freed.get(self.data_ptr())
                if found is not None and found.is_alive:
                    return 0
            full: int = original(self)
            return full

        return size

    kind.resize_ = resize_
    for name, original in sizes.items():
        setattr(kind, name, zero_if_freed(original))


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
        if _freed.get(buffer.address) is not buffer:
            return
        layout = buffer.layout
        buffer.core.memory.allocate(buffer.category, layout.nbytes)
        buffer.value = torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype, device="cpu").zero_()
        buffer.failure = None
        del _freed[buffer.address]
