"""Records operators on device tensors into the pending graph of their core, for later execution."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from neurontools.runtime.capture import eager
from neurontools.runtime.capture.replay import mark_eager_only, replayer
from neurontools.runtime.capture.trace import MISS
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.operators.operator import (
    DeviceOperator,
    NeedsResize,
    NotRecordable,
    NumberForTensor,
    OperatorSignature,
    Unverified,
    operators,
    signatures,
)
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffers import Buffer, Core, Tensor, buffers
from neurontools.runtime.tensors.device import device

# Types of arguments that are part of a call's key as they are.
_PLAIN = frozenset({type(None), torch.dtype, torch.layout, torch.memory_format, str, torch.device, complex})
_Parameter = torch.nn.Parameter
_BOOLEAN = (object(), object())
_LIST, _LIST_END, _FLOAT, _INT, _HOST, _OFFSET = (object() for _ in range(6))

# Copied to module globals, because an attribute look-up costs time in each operator call.
_lock = buffers.lock
_by_address = buffers.by_address
_young_layouts = layouts.young


class _CallKey:
    """Collects the inputs of an operator call, and a key that identifies the call's signature.

    This is the hot path of training: `add_tensor` runs for each tensor of each operator.
    """

    __slots__ = ("buffers", "hosts", "key", "scalars")

    def __init__(self, operator_id: int) -> None:
        self.key: list[Any] = [operator_id]
        self.buffers: list[Buffer] = []
        self.scalars: list[Any] = []
        self.hosts: list[Tensor] = []

    def add(self, value: Any, lifted: bool) -> None:
        kind = value.__class__
        if kind is int:
            if lifted:
                self.key.append(_INT)
                self.scalars.append(value)
            else:
                self.key.append(value)
        elif kind is float:
            self.key.append(_FLOAT)
            if lifted:
                self.scalars.append(value)
            else:
                self.key.append(value.hex())
        elif kind is bool:
            self.key.append(_BOOLEAN[value])
        elif kind is list or kind is tuple:
            self.key.append(_LIST)
            for item in value:
                kind = item.__class__
                if kind is Tensor or kind is _Parameter:
                    self.add_tensor(item)
                else:
                    self.add(item, lifted)
            self.key.append(_LIST_END)
        elif kind in _PLAIN:
            self.key.append(value)
        elif isinstance(value, Tensor):
            self.add_tensor(value)
        else:
            raise NotRecordable(f"{kind.__name__} argument")

    def add_tensor(self, value: Tensor) -> None:
        offset = value.storage_offset()
        buffer = None if offset else _by_address.get(value.data_ptr())
        if buffer is None:
            if value.is_cpu:
                self.key += (_HOST, value.shape, value.dtype)
                self.hosts.append(value)
                return
            buffer = buffers.buffer_of(value)
        layout = _young_layouts.get((value.shape, value.stride(), value.dtype))
        if layout is None:
            layout = layouts.layout_of(value)
        if layouts.has_complex and (value.is_conj() or value.is_neg()):
            raise NotRecordable("a conjugate or negative view")
        self.key.append(layout.id)
        if offset:
            self.key.append(_OFFSET)
            self.scalars.append(offset)
        self.buffers.append(buffer)


def recording_kernel(described: DeviceOperator | str) -> Callable[..., Any]:
    """Returns the kernel of an operator. For a name, the first call describes the operator, which takes its time."""
    operator = None if isinstance(described, str) else described
    name = described if isinstance(described, str) else described.name

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        nonlocal operator
        if replayer.ahead is not None:
            with _lock:
                ahead = replayer.ahead
                if ahead is not None:
                    if ahead.operator is operator:
                        try:
                            result: Any = ahead.match(arguments, keywords)
                        except BaseException:
                            replayer.bail_out()
                            raise
                        if result is not MISS:
                            return result
                    replayer.bail_out()
        if operator is None:
            with _lock:
                operator = operators.get(name)
        core: Core | None = None
        given = keywords if replayer.observed is None or not keywords else dict(keywords)
        if operator.has_device and keywords:
            wanted = keywords.pop("device", None)
            keywords.pop("pin_memory", None)
            if wanted is not None:
                wanted = torch.device(wanted)
                if wanted.type != device.name:
                    return eager.run_on_host(operator, arguments, keywords, wanted)
                core = device.core(wanted)
        if operator.has_generator and keywords and (generator := keywords.pop("generator", None)) is not None:
            return eager.run_eager(operator, arguments, {**keywords, "generator": generator}, core)
        with _lock:
            try:
                return _recorded_call(operator, arguments, keywords, given, core)
            except BaseException:
                # A signal handler may have raised an exception at any point of the recording.
                replayer.stop_observing()
                for each in device.acquired_cores:
                    each.pending.remove_interrupted()
                raise

    return kernel


def _recorded_call(operator: DeviceOperator, arguments: Any, keywords: Any, given: Any, core: Core | None) -> Any:
    """Records a call and returns its results. Runs the call eagerly if a graph can't contain it."""
    begun = perf_counter()
    if replayer.ahead is not None:  # another thread's execution has started a replay, which must end
        replayer.bail_out()
    try:
        core, signature = record(operator, arguments, keywords, core)
    except NumberForTensor as error:
        return recording_kernel(operator.with_number(error.position))(*arguments, **keywords)
    except Unverified as first:
        return _verify(first, operator, arguments, keywords, core)
    except (NotRecordable, NeedsResize) as error:
        if operator.out_names or isinstance(error, NeedsResize):
            return eager.run_resizing(operator, arguments, keywords)
        return eager.run_eager(operator, arguments, keywords, core)
    if ring.is_on or ring.traced_steps:
        core.pending.origins[len(core.pending.signatures) - 1] = ring.stack_table.operator_stack()
    if signature.single is not None:
        result = new_result(signature.single, core)
    elif operator.changed_result is not None:
        result = arguments[0] if arguments else keywords[operator.changed_result]
    else:
        outputs = signature.outputs or (None,) * len(operator.returns)
        result = eager.join_results(operator, arguments, keywords, outputs, lambda output: _new_results(output, core))
    if replayer.observed is not None:
        replayer.observe(core, operator, signature, arguments, given)
    metrics.add_tracing(perf_counter() - begun)
    device.recorded(core)
    return result


def _verify(
    first: Unverified, operator: DeviceOperator, arguments: tuple[Any, ...], keywords: dict[str, Any], core: Core | None
) -> Any:
    """Runs a call eagerly and compares the layouts of its results with those of the meta kernel.

    If they agree, later calls of this signature are recorded. Otherwise the operator always runs eagerly.
    """
    results: list[Any] = []
    result = eager.run_eager(operator, arguments, keywords, core, results)
    if first.signature.agrees_with(results):
        signatures.put(first.key, first.signature)
    else:
        mark_eager_only(operator)
    return result


def record(
    operator: DeviceOperator, arguments: tuple[Any, ...], keywords: dict[str, Any], core: Core | None
) -> tuple[Core, OperatorSignature]:
    """Adds a call to the pending graph of its core. The caller holds the lock and creates the results.

    Raises NotRecordable or NeedsResize, without recording anything, if the call must run eagerly.
    """
    call = _CallKey(operator.id)
    position = 0
    for value in arguments:
        kind = value.__class__
        if kind is Tensor or kind is _Parameter:
            call.add_tensor(value)
        else:
            call.add(value, position in operator.lifted_positions)
        position += 1  # noqa: SIM113  (enumerate costs more here)
    if keywords:
        for name, value in keywords.items():
            call.key.append(name)
            call.add(value, name in operator.lifted_names)
    if core is None:
        core = call.buffers[0].core if call.buffers else device.current
    key = tuple(call.key)
    signature = signatures.get(key)
    if signature is None:
        if call.hosts and call.buffers and not operator.mixed_devices and any(h.dim() for h in call.hosts):
            raise _mixed_devices_error(operator, core, torch.device("cpu"))
        signature = OperatorSignature(operator, arguments, keywords)
        if not operator.trusted:
            raise Unverified(key, signature)
        signatures.put(key, signature)
    for one, other in signature.overlap_candidates:
        if call.buffers[one.slot] is call.buffers[other.slot] and one.overlaps(
            other, call.scalars, may_coincide=operator.may_coincide
        ):
            raise NotRecordable(operator.name)  # the CPU kernel then raises the error that users know
    graph = core.pending
    indices = [signature.id]
    for buffer in call.buffers:
        if buffer.graph is graph:
            indices.append(buffer.index)
        else:
            if buffer.core is not core:
                raise _mixed_devices_error(operator, core, device.torch_device(buffer.core))
            indices.append(graph.index_of(buffer))
    graph.key += indices
    graph.signatures.append(signature)
    if call.scalars:
        graph.scalars += call.scalars
    if call.hosts:
        graph.hosts += [host.clone() for host in call.hosts]
    return core, signature


def new_result(layout: TensorLayout, core: Core) -> Tensor:
    """Creates a result tensor of the last recorded operator."""
    tensor, buffer = buffers.create(layout, None, core)
    core.pending.add_result(buffer)
    return tensor


def _new_results(output: Any, core: Core) -> Any:
    if output is None:
        return None
    if isinstance(output, list):
        return [_new_results(item, core) for item in output]
    return new_result(output, core)


def _mixed_devices_error(operator: DeviceOperator, core: Core, other: torch.device) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{device.torch_device(core)} and {other}! ({operator.name})"
    )
