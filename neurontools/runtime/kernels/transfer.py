"""Kernels that allocate device tensors and copy tensors between host and device."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from neurontools.profile.definitions import SpanKind
from neurontools.runtime.capture.eager import check_room, device_tensor, host_value, resize
from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.capture.replay import replayer
from neurontools.runtime.counting.metrics import call_sites, metrics
from neurontools.runtime.counting.steps import TRANSFER, step_clock
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, operators
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffers import Core, Tensor, buffers
from neurontools.runtime.tensors.device import device

aten = torch.ops.aten


def _core_of(wanted: Any) -> Core:
    return device.current if wanted is None else device.core(torch.device(wanted))


def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    _refuse_sparse(layout)
    format_ = torch.contiguous_format if memory_format is None else memory_format
    core = _core_of(device)
    _check_room(core, math.prod(size), dtype)
    return device_tensor(torch.empty(size, dtype=dtype, memory_format=format_, device="cpu"), core)


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    _refuse_sparse(layout)
    core = _core_of(device)
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    _check_room(core, extent, dtype)
    return device_tensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), core)


def _check_room(core: Core, elements: int, dtype: torch.dtype | None) -> None:
    visible = dtype or torch.get_default_dtype()
    check_room(core, elements * layouts.narrowed.get(visible, visible).itemsize)


def _refuse_sparse(layout: Any) -> None:
    if layout is not None and layout is not torch.strided:
        raise NotImplementedError(
            f"{device.name}: {layout} tensors are not supported on this device; use dense ones "
            "(nn.Embedding(sparse=False)) or keep this part on the CPU"
        )


def to_device(source: Tensor, core: Core) -> Tensor:
    """Copies a CPU tensor into the HBM of a core. Counts the time and the bytes."""
    started, charged = time.perf_counter(), step_clock.charged_seconds
    result = device_tensor(source.detach().clone(), core)
    nbytes = buffers.buffer_of(result).layout.nbytes
    core.statistics.to_device_bytes += nbytes
    seconds = time.perf_counter() - started
    is_background = step_clock.is_background()
    if not is_background:
        call_sites.add_seconds(call_sites.count_call("copy"), step_clock.charge(TRANSFER, seconds, charged))
    metrics.add_duration("TransferToDeviceTime", seconds)
    metrics.add_duration("TensorToData", seconds)
    if ring.traced_steps:
        ring.trace_input(buffers.buffer_of(result).address, is_background=is_background)
    if ring.is_on:
        ring.record_transfer(SpanKind.TO_DEVICE, core.global_index, int(started * 1e9), nbytes)
    metrics.add_sample("InboundData", source.nbytes)
    return result


def from_device(source: Tensor) -> Tensor:
    """Returns the value of a device tensor as a CPU tensor. Counts the time and the bytes.

    The result may share memory with the device tensor, so callers must copy it or only read it.
    """
    started, charged = time.perf_counter(), step_clock.charged_seconds
    core = device.core_of(source)
    place = None
    if core.pending.signatures or replayer.is_replaying(core):
        place = call_sites.count_call("read", names_package=True)
    elif not call_sites.is_in_closure():  # the read executes nothing, but on hardware it waits for the device
        place = call_sites.count_call("result read", names_package=True)
    value = host_value(source)
    core.statistics.from_device_bytes += source.nbytes
    seconds = time.perf_counter() - started
    if not step_clock.is_background():
        call_sites.add_seconds(place, step_clock.charge(TRANSFER, seconds, charged))
    metrics.add_duration("TransferFromDeviceTime", seconds)
    if ring.is_on:
        ring.record_transfer(SpanKind.FROM_DEVICE, core.global_index, int(started * 1e9), source.nbytes)
    metrics.add_sample("OutboundData", source.nbytes)
    return value


def copy_(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if self.is_cpu:
        return self.copy_(from_device(source))
    if source.is_cpu:
        source = to_device(source.to(self.dtype), device.core_of(self))
    elif device.core_of(self) is not device.core_of(source):
        source = to_device(from_device(source), device.core_of(self))
    result: Tensor = _record_copy(self, source)
    return result


def to_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    target = self.device if device is None else torch.device(device)
    result: Tensor
    if self.is_cpu:
        return to_device(aten._to_copy.default(self, dtype=dtype, memory_format=memory_format), _core_of(target))
    if target.type == self.device.type:
        core = _core_of(target)
        if core is _core_of(self.device):
            result = _record_to_copy(self, dtype=dtype, memory_format=memory_format)
            return result
        return to_device(from_device(self).to(dtype or self.dtype), core)
    result = aten._to_copy.default(from_device(self), dtype=dtype, memory_format=memory_format)
    return result if target.type == "cpu" else result.to(target)


def resize_(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    if list(self.shape) == list(size) and memory_format is None:
        return self
    like = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return resize(self, like.shape, like.stride())


_record_copy = recording_kernel(operators.add(DeviceOperator(find_overload("aten::copy_"))))
_record_to_copy = recording_kernel(operators.add(DeviceOperator(find_overload("aten::_to_copy"))))


def _zeros(
    size: Any, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    """Implements aten::_efficientzerotensor. Unlike on the CPU, the result has memory."""
    return device_tensor(torch.zeros(size, dtype=dtype, device="cpu"), _core_of(device))


TRANSFER_KERNELS: dict[str, Any] = {
    "aten::empty.memory_format": empty,
    "aten::empty_strided": empty_strided,
    "aten::_efficientzerotensor": _zeros,
    "aten::copy_": copy_,
    "aten::_copy_from": lambda source, target, non_blocking=False: copy_(target, source, non_blocking),
    "aten::_copy_from_and_resize": lambda source, target: copy_(target.resize_(source.shape), source),
    "aten::_local_scalar_dense": lambda self: from_device(self).item(),
    "aten::_to_copy": to_copy,
    "aten::resize_": resize_,
    "aten::is_pinned": lambda *_arguments, **_keywords: False,  # device memory is never pinned
}
