"""torch.autocast on the device: kernels that cast arguments, and the cache of cast parameters."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.operators.operator import find_overload, flattened, map_tensors
from neurontools.runtime.tensors.buffers import Tensor

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
    _cast_cache.clear_with_torch()
    _redirect_cuda(name)


class _CastCache:
    """Keeps cast parameters until the outermost autocast region ends, as torch does for its own devices.

    Several uses of a parameter then add their gradients in the lower type, with the rounding of the CPU.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def cast(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns `value` in the lower type. Casts a parameter once, unless it changes."""
        is_cached = (
            value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_grad_enabled()
            and torch.is_autocast_cache_enabled()
        )
        if not is_cached:
            return value.to(dtype)
        version = value._version
        entry = self._entries.get(id(value))
        if entry is not None and entry[0]() is value and entry[1] == version and entry[2].dtype is dtype:
            return entry[2]
        result = value.to(dtype)
        self._entries[id(value)] = weakref.ref(value), version, result
        return result

    def clear_with_torch(self) -> None:
        """Clears this cache whenever torch clears its own."""
        clear = torch.clear_autocast_cache

        @functools.wraps(clear)
        def clear_both() -> None:
            self._entries.clear()
            clear()

        torch.clear_autocast_cache = clear_both


_cast_cache = _CastCache()


def _casting(op: Any, name: str, chosen: Callable[[Any], torch.dtype | None]) -> Callable[..., Any]:
    core: Any = torch._C
    autocast = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        dtype = chosen(arguments)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            if dtype is None:
                return op(*arguments, **keywords)
            is_lower = dtype is torch.get_autocast_dtype(name)

            def cast(value: Tensor) -> Tensor:
                if value.dtype not in _FLOATS or value.device.type != name:
                    return value
                return _cast_cache.cast(value, dtype) if is_lower else value.to(dtype)

            # C++ casts the last argument first. Backward passes add gradients in the order of these casts.
            named = {key: map_tensors(value, cast) for key, value in keywords.items()}
            positional = [map_tensors(value, cast) for value in reversed(arguments)]
            return op(*reversed(positional), **named)

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
