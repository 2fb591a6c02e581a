"""Runs operators that a graph can't record eagerly on the host, on the memory of device tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.profile.definitions import SpanKind
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.operators.operator import DeviceOperator, flattened, map_tensors
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffers import Category, Core, OutOfDeviceMemory, Tensor, alias, buffers
from neurontools.runtime.tensors.device import device


def host_alias(tensor: Tensor) -> Tensor:
    """Returns a CPU tensor that shares a device tensor's memory. The core must have no pending graph."""
    value = alias(buffers.buffer_of(tensor), layouts.layout_of(tensor), int(tensor.storage_offset()))
    if layouts.has_complex:
        if tensor.is_conj():
            value = value.conj()
        if tensor.is_neg():
            value = torch._neg_view(value)
    return value


def host_value(tensor: Tensor) -> Tensor:
    """Executes the pending graph. Returns a device tensor's value as a CPU tensor of the dtype that the script sees."""
    with buffers.lock:
        if device.recording is not None:
            device.recording.before_read(tensor)
        device.flush(device.core_of(tensor), "Read")
        value = host_alias(tensor)
        return value if value.dtype is tensor.dtype else value.to(tensor.dtype)


def device_tensor(value: Tensor, core: Core) -> Tensor:
    """Moves a CPU tensor to the device. Copies it only if the device needs another layout.

    No other tensor may share its memory. Raises NotImplementedError for a sparse, quantized or oneDNN tensor.
    """
    refuse_unstrided(value)
    layout = layouts.layout_of(value)
    is_whole = not value.storage_offset() and value.untyped_storage().nbytes() == layout.nbytes
    if not is_whole or layout.device_dtype is not value.dtype:
        copy = torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype, device="cpu")
        value = copy.copy_(value)
    with buffers.lock:
        reserve(core, layout.nbytes)
        tensor, buffer = buffers.create(layout, value, core)
        metrics.count_tensor()
        if ring.is_on:
            ring.record_allocation(core.global_index, buffer.address, layout.nbytes)
        return tensor


def refuse_unstrided(value: Tensor) -> None:
    """Raises NotImplementedError for a tensor without strides: sparse, quantized or of oneDNN."""
    if value.layout is not torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else str(value.layout)
        raise NotImplementedError(
            f"{device.name}: {kind} tensors are not supported on this device; use dense ones "
            "(nn.Embedding(sparse=False)) or keep this part on the CPU"
        )


def reserve(core: Core, nbytes: int) -> None:
    """Allocates HBM for a tensor. If HBM is short, first executes the pending graph, which frees unused inputs."""
    buffers.drain()
    memory = core.memory
    if (memory.total_bytes + nbytes) * 2 > memory.limit_bytes:
        unused = (b for b in core.graph.buffers if b.value is not None and not b.is_alive)
        if sum(buffer.layout.nbytes for buffer in unused) * 8 > memory.limit_bytes:
            device.flush(core, "MemoryPressure")
    try:
        memory.allocate(Category.TENSORS, nbytes)
    except OutOfDeviceMemory:
        memory.refusals_total -= 1
        memory.retries_total += 1
        device.flush(core, "MemoryPressure")
        memory.allocate(Category.TENSORS, nbytes)


def check_room(core: Core, nbytes: int) -> None:
    """Raises OutOfDeviceMemory for a size above the core's HBM limit, before the host allocates that memory."""
    if nbytes > core.memory.limit_bytes:
        raise core.memory.refusal(Category.TENSORS, nbytes)


def run_on_host(operator: DeviceOperator, arguments: Any, keywords: Any, target: torch.device) -> Any:
    """Runs a tensor factory whose result is on another device, such as torch.zeros_like(x, device="cpu")."""
    host = [map_tensors(a, host_value) for a in arguments]
    return operator.op(*host, **{name: map_tensors(a, host_value) for name, a in keywords.items()}, device=target)


def run_eager(
    operator: DeviceOperator, arguments: Any, keywords: Any, core: Core | None, results: list[Any] | None = None
) -> Any:
    """Runs an operator eagerly on the host and counts a fallback.

    A graph can't record such an operator, for example because its result layouts depend on values. Adds the results to
    `results` as CPU tensors.
    """
    with buffers.lock:
        tensors = [t for t in _tensors([arguments, *keywords.values()]) if not t.is_cpu]
        if core is None:
            core = device.core_of(tensors[0]) if tensors else device.current
        if device.recording is not None:
            device.recording.before_eager(operator.name, tensors, writes=bool(operator.writes))
        for tensor in tensors:
            device.flush(device.core_of(tensor), "Fallback")
        # Under XLA_USE_BF16, the host computes in the dtype that the script sees, and then copies changed values back.
        host: dict[int, Tensor] = {}

        def on_host(tensor: Tensor) -> Tensor:
            if tensor.is_cpu:
                return tensor
            value = host_alias(tensor)
            if value.dtype is not tensor.dtype:
                value = value.to(tensor.dtype)
                host[id(tensor)] = value
            return value

        values = [map_tensors(a, on_host) for a in arguments]
        named = {name: map_tensors(a, on_host) for name, a in keywords.items()}
        if operator.has_generator and named.get("generator") is None:
            named["generator"] = core.generator
        if operator.has_device:
            named["device"] = torch.device("cpu")
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            begun_ns = time.perf_counter_ns()
            result = operator.call(*values, **named)
            metrics.count_fallback(operator.name)
            if ring.is_on:
                ended_ns = time.perf_counter_ns()
                ring.record_span(
                    SpanKind.FALLBACK, operator.name, -1, begun_ns, ended_ns, stack=ring.stack_table.current_stack()
                )
            if results is not None:
                results += result if len(operator.returns) > 1 else (result,)
            for position, name in operator.writes:
                for tensor in _tensors(keywords.get(name, arguments[position : position + 1])):
                    if id(tensor) in host:
                        host_alias(tensor).copy_(host[id(tensor)])
        return _device_results(
            operator, arguments, keywords, result, core, _shared_storages([*values, *named.values()], tensors)
        )


def run_resizing(operator: DeviceOperator, arguments: Any, keywords: Any) -> Any:
    """Runs an `out=` call that may resize its target.

    Copies a result into its target. If their shapes differ, first resizes the target. If a target shares memory with an
    argument, the operator runs again on this memory, for the error or the values of the CPU.
    """
    with buffers.lock:
        targets = {name: keywords[name] for name in operator.out_names if name in keywords}
        core = device.core_of(next(iter(targets.values())))
        if device.recording is not None:
            device.recording.before_eager(operator.name, list(targets.values()), writes=True)
        device.flush(core, "Resize")
        fresh = {name: torch.empty(0, dtype=target.dtype, device="cpu") for name, target in targets.items()}

        def on_host(tensor: Tensor) -> Tensor:
            return tensor if tensor.is_cpu else host_value(tensor)

        values = map_tensors(arguments, on_host)
        named = {name: map_tensors(a, on_host) for name, a in keywords.items()}
        given = _tensors([values, *(value for name, value in named.items() if name not in targets)])
        used = {value.untyped_storage().data_ptr() for value in given}
        is_shared = any(named[name].untyped_storage().data_ptr() in used for name in targets)
        with torch._C._AutoDispatchBelowAutograd():
            operator.call(*values, **(named | fresh))
            metrics.count_fallback(operator.name)
            has_same_shapes = all(fresh[name].shape == target.shape for name, target in targets.items())
            if is_shared and has_same_shapes and not operator.random:
                operator.call(*values, **named)
            else:
                for name, target in targets.items():
                    if fresh[name].shape != target.shape:
                        resize(target, fresh[name].shape, fresh[name].stride())
                    host_alias(target).copy_(fresh[name])
        results = list(targets.values())
        return results[0] if len(results) == 1 else tuple(results)


def _view_of(owner: Tensor, value: Tensor) -> Tensor:
    """Returns a view of a device tensor's storage with the size, strides and offset of a CPU tensor."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # uses torch's CPU kernel, which reads no tensor data
    view: Tensor = torch.ops.aten.as_strided.default.redispatch(
        keys, owner, list(value.shape), list(value.stride()), value.storage_offset()
    )
    return view


def resize(target: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Gives a device tensor another size and other strides. Tensors that share its storage continue to share it.

    If the storage is too small, moves the tensor to a new storage with the old elements. Raises NotImplementedError if
    other tensors share the small storage, because a storage on this device can't grow.
    """
    with buffers.lock:
        offset = int(target.storage_offset())
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
        storage = target.untyped_storage()
        missing_bytes = (offset + extent) * target.dtype.itemsize - storage.nbytes()
        if extent and missing_bytes > 0:
            if _is_shared(target):
                raise NotImplementedError(
                    f"{device.name}: resize_ to {list(size)} needs {missing_bytes} bytes more than the storage of this "
                    "tensor has, and other tensors share this storage; resize a clone() of the tensor"
                )
            core = device.core_of(target)
            check_room(core, (offset + extent) * layouts.narrowed.get(target.dtype, target.dtype).itemsize)
            grown = torch.empty(offset + extent, dtype=target.dtype, device="cpu")
            old_count = storage.nbytes() // target.dtype.itemsize
            if old_count:
                grown[:old_count].copy_(host_value(_with_layout(target, storage, 0, [old_count], [1])))
            storage = device_tensor(grown, core).untyped_storage()
        return _set_storage(target, storage, offset, size, stride)


def _is_shared(tensor: Tensor) -> bool:
    core: Any = torch._C
    storage = tensor.untyped_storage()
    # The tensor and the Python object of the storage are two users.
    return int(core._storage_Use_Count(storage._cdata)) > 2


def _with_layout(like: Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return _set_storage(torch.empty(0, dtype=like.dtype, device=like.device), storage, offset, size, stride)


def _set_storage(target: Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # uses torch's CPU kernel, which reads no tensor data
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        keys, target, storage, offset, list(size), list(stride)
    )
    return target


def _shared_storages(values: list[Any], tensors: list[Tensor]) -> dict[int, Tensor | None]:
    """Maps host addresses of the arguments' storages to device tensors. A CPU argument's address maps to None."""
    shared: dict[int, Tensor | None] = {t.untyped_storage().data_ptr(): None for t in _tensors(values)}
    for tensor in tensors:
        value = buffers.buffer_of(tensor).value
        if value is not None:
            shared[value.untyped_storage().data_ptr()] = tensor
    return shared


def _device_results(
    operator: DeviceOperator, arguments: Any, keywords: Any, result: Any, core: Core, shared: dict[int, Tensor | None]
) -> Any:
    def on_device(value: Tensor) -> Tensor:
        refuse_unstrided(value)
        where = value.untyped_storage().data_ptr()
        if where not in shared or not value.numel():
            return device_tensor(value, core)
        owner = shared[where]
        if owner is None or owner.dtype is not value.dtype or layouts.narrowed:
            return device_tensor(value.clone(), core)
        return _view_of(owner, value)  # a result that views an argument is a view on the device too

    values = result if len(operator.returns) > 1 else (result,)[: len(operator.returns)]
    return join_results(operator, arguments, keywords, values, lambda value: map_tensors(value, on_device))


def join_results(
    operator: DeviceOperator, arguments: Any, keywords: Any, values: Sequence[Any], make: Callable[[Any], Any]
) -> Any:
    """Returns the results of a call. A result is a changed argument, or `make(value)` for a value that is new."""
    results = [
        make(value) if written is None else keywords[written[1]] if written[1] in keywords else arguments[written[0]]
        for value, written in zip(values, operator.returns, strict=True)
    ]
    if len(results) == 1:
        return results[0]
    return tuple(results) if results else None


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in flattened(values) if isinstance(value, Tensor)]
