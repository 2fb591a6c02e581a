"""Registers the device's kernels with torch: recording kernels for CPU operators, torch's C++ kernels for views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels import recurrent, transfer
from neurontools.runtime.kernels.argument_checks import checked_meta_call
from neurontools.runtime.kernels.autocast import register_autocast
from neurontools.runtime.kernels.layers import attention, dropout_kernels, normalization_kernels, probed_kernels
from neurontools.runtime.kernels.linear import linear_kernels
from neurontools.runtime.operators.operator import (
    DeviceOperator,
    find_overload,
    is_batched,
    operators,
)
from neurontools.runtime.tensors.buffers import Tensor

_C: Any = torch._C
_KEY = "PrivateUse1"
_VIEWS = (
    "view as_strided _reshape_alias unfold view_as_real view_as_complex view.dtype set_.source_Storage "
    "set_.source_Storage_storage_offset set_.source_Tensor set_"
).split()
# Operators that stock torch handles on any device, or that have no meaning on this device.
_SKIPPED = frozenset(
    "aten::" + name
    for name in (
        "resize_ empty.memory_format empty_strided _resize_output_ set_.source_Storage _pin_memory "
        "is_pinned record_stream _has_compatible_shallow_copy_type "
        "_nested_tensor_from_tensor_list"
    ).split()
)
# Composite operators that are recorded whole. Recorded in parts, they would be slower or differ from the CPU in bits.
_RECORDED_WHOLE = frozenset(
    "aten::" + name
    for name in """convolution convolution_backward embedding native_dropout native_dropout_backward native_group_norm
 native_layer_norm native_layer_norm_backward _fused_sdp_choice sum mean.dim clone zeros ones full arange arange.start
 arange.start_step scalar_tensor eye linspace zeros_like ones_like full_like new_zeros new_ones new_full
 nll_loss_forward  stack
 repeat_interleave.Tensor softplus celu dist norm.Scalar addr addr_ logsumexp sum.dim_IntList index_put _index_put_impl_
 index_fill.int_Scalar masked_fill.Scalar masked_fill.Tensor add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Scalar
 rsub.Tensor randperm narrow_copy constant_pad_nd repeat roll trace tril_indices triu_indices
 binary_cross_entropy_with_logits soft_margin_loss logical_and logical_or logical_not logical_xor isnan isinf
 mse_loss_backward select_backward slice_backward embedding_renorm_ glu _euclidean_dist cumprod cumsum fill.Scalar copy_
 relu6 hardswish std.correction var.correction var_mean.correction unsafe_split.Tensor cat abs complex polar kthvalue
 median.dim nanmedian.dim""".split()
)
# Operators that run eagerly, because torch's meta kernels and CPU kernels give different result layouts.
_EAGER = frozenset("aten::" + name for name in "linalg_lstsq linalg_lstsq.out".split())
# Operators that accept CPU tensors and device tensors in one call.
_MIXED = frozenset(
    "aten::" + name
    for name in "index.Tensor index_put_ index_put _index_put_impl_ _foreach_copy_ set_.source_Tensor "
    "masked_fill_.Tensor".split()
)


def register_kernels(name: str, keep: Callable[[Any], None]) -> None:
    """Registers all kernels with torch. `keep` stores the registrations."""
    library = torch.library.Library("aten", "IMPL")
    keep(library)
    special: dict[str, Any] = dict(transfer.TRANSFER_KERNELS)
    special["aten::_embedding_bag_backward"] = _embedding_bag_backward()
    for kernels in (dropout_kernels, normalization_kernels, linear_kernels, probed_kernels):
        special |= kernels()
    for view in _VIEWS:
        library.impl(view, _native(find_overload("aten::" + view)), _KEY)
    for full, kernel in special.items():
        library.impl(full, kernel, _KEY)
    done = set(special) | {"aten::" + view for view in _VIEWS} | _SKIPPED
    for full in _recorded_names(done):
        operators.add_undescribed(full, functools.partial(_describe, full))
        kernel = recording_kernel(full)
        if full.startswith("aten::_foreach") and full.partition(".")[0].endswith("_"):
            kernel = _counting_versions(kernel)
        library.impl(full.removeprefix("aten::"), kernel, _KEY)
    for key in ("Autograd" + _KEY, _KEY):
        library.impl("embedding_backward", _embedding_backward, key)
        library.impl("scaled_dot_product_attention", attention, key)
        for short, kernel in recurrent.RECURRENT_KERNELS.items():
            library.impl(short, kernel, key)
    for key in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        other = torch.library.Library("_", "IMPL")
        keep(other)
        other.fallback(_not_dense(name, key), key + _KEY)
    recurrent.register_recurrent(keep)
    _register_fallback(keep)
    register_autocast(name, keep)


def _describe(name: str) -> DeviceOperator:
    operator = DeviceOperator(find_overload(name), mixed_devices=name in _MIXED)
    operator.dynamic = operator.dynamic or name in _EAGER
    operator.meta_call = checked_meta_call(name, operator.meta_call)
    return operator


def _counting_versions(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that also increments the version counters of the list of tensors that it changes.

    torch leaves this to the kernels of a backend, for `_foreach_` operators only. Backward passes check the counters.
    """
    increment: Callable[[list[Tensor]], None] = _C._increment_version

    def changing_kernel(tensors: list[Tensor], *arguments: Any, **keywords: Any) -> Any:
        result = kernel(tensors, *arguments, **keywords)
        increment(tensors)
        return result

    return changing_kernel


def _embedding_backward(
    gradient: Tensor, indices: Tensor, count: int, padding_index: int, scale_by_frequency: bool, _sparse: bool
) -> Tensor:
    """Returns a dense gradient also for `sparse=True`, as torch_xla does, because the device has no sparse tensors."""
    dense = torch.ops.aten.embedding_dense_backward.default
    result: Tensor = dense(gradient, indices, count, padding_index, scale_by_frequency)
    return result


def _embedding_bag_backward() -> Callable[..., Any]:
    kernel = recording_kernel(operators.add(DeviceOperator(find_overload("aten::_embedding_bag_backward"))))
    return lambda *arguments: kernel(*arguments[:9], False, *arguments[10:])


_UNSUPPORTED_MESSAGES = {
    "Sparse": "sparse tensors are not supported on {}; use dense ones (nn.Embedding(sparse=False))",
    "SparseCsr": "sparse tensors are not supported on {}; use dense ones",
    "Quantized": "quantized tensors are not supported on {}; use dense ones",
    "NestedTensor": "nested tensors are supported on {} with layout=torch.jagged only",
}


def _not_dense(name: str, key: str) -> Callable[..., Any]:
    def kernel(op: Any, *_arguments: Any, **_keywords: Any) -> Any:
        raise NotImplementedError(f"{op.name()}: {_UNSUPPORTED_MESSAGES[key].format(name)}")

    return kernel


def _recorded_names(done: set[str]) -> list[str]:
    registered = _C._dispatch_get_registrations_for_dispatch_key
    cpu = list(registered("CPU"))
    whole = [n for n in registered("CompositeExplicitAutograd") if n in _RECORDED_WHOLE or is_batched(n)]
    names = dict.fromkeys([*cpu, *registered("CompositeExplicitAutogradNonFunctional"), *whole])
    return [n for n in names if n.startswith("aten::") and n not in done and _makes_or_changes_values(n)]


def _makes_or_changes_values(name: str) -> bool:
    """Returns whether an operator makes new tensors or changes values.

    torch implements view operators by as_strided. Its own kernels run operators that only change shape and strides.
    """
    base, _, overload = name.partition(".")
    try:
        returns = _C._get_schema(base, overload).returns
    except RuntimeError:  # an operator without a schema
        return False
    if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        return False
    return torch.Tag.inplace_view not in _C._get_operation_overload(base, overload)[2]


def _native(op: Any) -> Callable[..., Any]:
    """Returns a kernel that calls torch's C++ CPU kernel for a view operator, which reads only shapes and strides."""
    keys = _C.DispatchKeySet(_C.DispatchKey.CPU)
    redispatch = op._handle.redispatch_boxed

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        return redispatch(keys, *arguments, **keywords)

    return kernel


def _register_fallback(keep: Callable[[Any], None]) -> None:
    """Registers a fallback that records operators of other libraries, such as torchvision, with their CPU kernels."""
    every = torch.library.Library("_", "IMPL")
    keep(every)
    kernels: dict[Any, Callable[..., Any]] = {}

    def fallback(op: Any, *arguments: Any, **keywords: Any) -> Any:
        kernel = kernels.get(op)
        if kernel is None:
            kernel = kernels[op] = recording_kernel(operators.add(DeviceOperator(op)))
        return kernel(*arguments, **keywords)

    every.fallback(fallback, _KEY)
