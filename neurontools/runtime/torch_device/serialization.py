"""Pickling, copying and loading of device tensors, where stock torch needs a C++ allocator or crashes without one."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.capture.immediate import device_tensor, host_value
from neurontools.runtime.tensors.core import Tensor
from neurontools.runtime.tensors.device import device


def install(name: str) -> None:
    """Patches torch for the device of this name; once a process."""
    torch.serialization.register_package(5, _tag, _restore)
    _patch_storage()
    _patch_pin_memory()
    if name != "xla":  # torch has these paths for xla itself
        _patch_pickle(name)


def _tag(storage: Any) -> str | None:
    where = storage.device
    return f"{device.name}:{where.index or 0}" if where.type == device.name else None


def _restore(storage: Any, location: str) -> Any:
    if torch.device(location).type != device.name if _is_device(location) else True:
        return None
    untyped = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
    if untyped.device.type == device.name:
        return untyped
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).clone()
    return device_tensor(flat, device.core(torch.device(location))).untyped_storage()


def _is_device(location: str) -> bool:
    return str(location).partition(":")[0] == device.name


def _bytes_of(storage: Any) -> Tensor:
    """The bytes of a device storage on the host."""
    flat: Tensor = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return host_value(flat.set_(storage))


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
        return device_tensor(_bytes_of(self).clone(), device.core(self.device)).untyped_storage()

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


def _patch_pin_memory() -> None:
    """There is nothing to pin for a simulated device, and the hook that would supply an allocator is C++ only."""

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        return self

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign,assignment]


def _patch_pickle(name: str) -> None:
    """Takes for our name the path that torch has for `xla`: through a CPU tensor, without touching the storage."""
    kind: Any = torch.Tensor
    original_reduce, original_copy = kind._reduce_ex_internal, kind.__deepcopy__

    def reduce_ex(self: Tensor, protocol: int) -> Any:
        if self.device.type == name and type(self) in (torch.Tensor, torch.nn.Parameter):
            rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
            return rebuild, (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return original_reduce(self, protocol)

    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
        if self.device.type != name or not self.is_leaf or type(self) is not torch.Tensor:
            return original_copy(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            copy = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        return copy

    kind._reduce_ex_internal, kind.__deepcopy__ = reduce_ex, deepcopy
