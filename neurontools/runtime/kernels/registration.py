"""Registers the device's kernels with torch: recording kernels for CPU operators, torch's C++ kernels for views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels import autocast, recurrent, transfer
from neurontools.runtime.kernels.layers import attention, dropout_kernels, normalization_kernels, probed_kernels
from neurontools.runtime.kernels.linear import linear_kernels
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, is_batched, operators

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
_WHOLE = frozenset(
    "aten::" + name
    for name in """convolution convolution_backward embedding native_dropout native_dropout_backward native_group_norm
 native_layer_norm native_layer_norm_backward _fused_sdp_choice sum mean.dim clone zeros ones full arange arange.start
 arange.start_step scalar_tensor eye linspace zeros_like ones_like full_like new_zeros new_ones new_full
 nll_loss_forward  stack
 repeat_interleave.Tensor softplus celu dist norm.Scalar addr logsumexp sum.dim_IntList index_put _index_put_impl_
 index_fill.int_Scalar masked_fill.Scalar masked_fill.Tensor add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Scalar
 rsub.Tensor randperm narrow_copy constant_pad_nd repeat roll trace tril_indices triu_indices
 binary_cross_entropy_with_logits soft_margin_loss logical_and logical_or logical_not logical_xor isnan isinf
 mse_loss_backward select_backward slice_backward embedding_renorm_ glu _euclidean_dist cumprod cumsum fill.Scalar copy_
 relu6 hardswish std.correction var.correction var_mean.correction unsafe_split.Tensor cat abs complex polar kthvalue
 median.dim nanmedian.dim""".split()
)
# Operators that run eagerly, because torch's meta kernels and CPU kernels give different result layouts.
_AT_ONCE = frozenset("aten::" + name for name in "linalg_lstsq linalg_lstsq.out".split())
# Operators that accept CPU tensors and device tensors in one call.
_MIXED = frozenset(
    "aten::" + name
    for name in "index.Tensor index_put_ index_put _index_put_impl_ _foreach_copy_ set_.source_Tensor "
    "masked_fill_.Tensor".split()
)


def register_kernels(name: str, keep: Callable[[Any], None]) -> dict[str, DeviceOperator]:
    """Registers all kernels with torch. Returns the recorded operators by name. `keep` stores the registrations."""
    library = torch.library.Library("aten", "IMPL")
    keep(library)
    special: dict[str, Any] = dict(transfer.TRANSFER_KERNELS)
    for kernels in (dropout_kernels, normalization_kernels, linear_kernels, probed_kernels):
        special |= kernels()
    for view in _VIEWS:
        library.impl(view, _native(find_overload("aten::" + view)), _KEY)
    for full, kernel in special.items():
        library.impl(full.removeprefix("aten::"), kernel, _KEY)
    done = set(special) | {"aten::" + view for view in _VIEWS} | _SKIPPED
    for full in _recorded_names(done):
        try:
            op = find_overload(full)
        except AttributeError:
            continue
        if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
            continue  # torch implements view operators by as_strided
        if torch.Tag.inplace_view in op.tags:
            continue  # torch's own kernels run operators that only change shape and strides
        operator = operators.add(DeviceOperator(op, mixed_devices=full in _MIXED))
        operator.dynamic = operator.dynamic or full in _AT_ONCE
        library.impl(full.removeprefix("aten::"), recording_kernel(operator), _KEY)
    for key in ("Autograd" + _KEY, _KEY):
        library.impl("scaled_dot_product_attention", attention, key)
        for short, kernel in recurrent.RECURRENT_KERNELS.items():
            library.impl(short, kernel, key)
    for key in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        other = torch.library.Library("_", "IMPL")
        keep(other)
        other.fallback(_not_dense(name, key), key + _KEY)
    recurrent.register_recurrent(keep)
    _register_fallback(keep)
    autocast.register_autocast(name, keep)
    return operators.by_name


_INSTEAD = {
    "Sparse": "sparse tensors are not supported on {}; use dense ones (nn.Embedding(sparse=False))",
    "SparseCsr": "sparse tensors are not supported on {}; use dense ones",
    "Quantized": "quantized tensors are not supported on {}; use dense ones",
    "NestedTensor": "nested tensors are supported on {} with layout=torch.jagged only",
}


def _not_dense(name: str, key: str) -> Callable[..., Any]:
    def kernel(op: Any, *_arguments: Any, **_keywords: Any) -> Any:
        raise NotImplementedError(f"{op.name()}: {_INSTEAD[key].format(name)}")

    return kernel


def _recorded_names(done: set[str]) -> list[str]:
    registered = _C._dispatch_get_registrations_for_dispatch_key
    cpu = list(registered("CPU"))
    whole = [n for n in registered("CompositeExplicitAutograd") if n in _WHOLE or is_batched(n)]
    names = dict.fromkeys([*cpu, *registered("CompositeExplicitAutogradNonFunctional"), *whole])
    return [n for n in names if n.startswith("aten::") and n not in done]


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
    known: dict[Any, Callable[..., Any]] = {}

    def fallback(op: Any, *arguments: Any, **keywords: Any) -> Any:
        kernel = known.get(op)
        if kernel is None:
            kernel = known[op] = recording_kernel(operators.add(DeviceOperator(op)))
        return kernel(*arguments, **keywords)

    every.fallback(fallback, _KEY)
