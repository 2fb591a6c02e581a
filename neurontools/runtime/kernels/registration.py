"""Registers the device's kernels with torch: recording kernels for CPU operators, torch's C++ kernels for views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels import recurrent, transfer
from neurontools.runtime.kernels.argument_checks import checked_meta_call
from neurontools.runtime.kernels.layers import attention, dropout_kernels, normalization_kernels, probed_kernels
from neurontools.runtime.kernels.linear import linear_kernels
from neurontools.runtime.operators.operator import (
    DeviceOperator,
    find_overload,
    flattened,
    is_batched,
    map_tensors,
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
 repeat_interleave.Tensor softplus celu dist norm.Scalar addr logsumexp sum.dim_IntList index_put _index_put_impl_
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


_LOWER = """_convolution.deprecated _convolution conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding
 conv_tbc  conv_transpose1d conv_transpose2d.input
 conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv
 linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot scaled_dot_product_attention lstm_cell gru_cell
 rnn_tanh_cell rnn_relu_cell mkldnn_rnn_layer""".split()
_FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
 pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
 nuclear_norm.dim cosine_similarity cross_entropy_loss poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
 hinge_embedding_loss
 kl_div  l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
 triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp softmax.int
 log_softmax.int prod prod.dim_int cumprod cumsum linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList""".split()
_PROMOTE = """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat
 stack""".split()
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def register_autocast(name: str, keep: Callable[[Any], None]) -> None:
    """Registers kernels that cast arguments under torch.autocast. `keep` stores objects that must stay alive."""
    every = torch.library.Library("_", "IMPL")
    keep(every)
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    keep(library)
    rules: list[tuple[list[str], Callable[[Any], torch.dtype | None]]] = [
        (_LOWER, lambda _arguments: torch.get_autocast_dtype(name)),
        (_FLOAT32, lambda _arguments: torch.float32),
        (_PROMOTE, _widest),
    ]
    for names, chosen in rules:
        for operator in names:
            try:
                op = find_overload("aten::" + operator)
            except AttributeError:
                continue
            library.impl(operator, _casting(op, name, chosen), "AutocastPrivateUse1")
    _redirect_cuda(name)


def _casting(op: Any, name: str, chosen: Callable[[Any], torch.dtype | None]) -> Callable[..., Any]:
    core: Any = torch._C
    autocast = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        dtype = chosen(arguments)

        def cast(value: Tensor) -> Tensor:
            return value.to(dtype) if value.dtype in _FLOATS and value.device.type == name else value

        with torch._C._ExcludeDispatchKeyGuard(autocast):
            if dtype is None:
                return op(*arguments, **keywords)
            named = {key: map_tensors(value, cast) for key, value in keywords.items()}
            return op(*map_tensors(arguments, cast), **named)

    return kernel


def _widest(arguments: Any) -> torch.dtype | None:
    """Returns float32 if a tensor has this type, else the type of the first floating-point tensor."""
    tensors = (value for value in flattened(arguments) if isinstance(value, Tensor))
    types = [tensor.dtype for tensor in tensors if tensor.dtype in _FLOATS]
    return torch.float32 if torch.float32 in types else types[0] if types else None


def _redirect_cuda(name: str) -> None:
    """Redirects torch.autocast("cuda") to this device, for scripts of 2024 whose torch_xla had no autocast.

    Applies only if the script has replaced torch.cuda.is_bf16_supported, which torch.autocast calls. On a host without
    a GPU, this shows that the script means the XLA device. In all other scripts "cuda" is unchanged.
    """
    if name != "xla" or torch.cuda.is_available():
        return
    autocast: Any = torch.amp.autocast_mode.autocast
    original, stock = autocast.__init__, torch.cuda.is_bf16_supported

    @functools.wraps(original)
    def init(self: Any, device_type: str, *arguments: Any, **keywords: Any) -> None:
        is_cuda = device_type == "cuda" and torch.cuda.is_bf16_supported is not stock
        original(self, name if is_cuda else device_type, *arguments, **keywords)

    autocast.__init__ = init
