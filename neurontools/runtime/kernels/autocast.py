"""torch.autocast for the device. Lists the operators that autocast runs in each precision, as on other accelerators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.operators.operator import find_overload
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
    for names, chosen in ((_LOWER, _lower), (_FLOAT32, _float32), (_PROMOTE, _widest)):
        for operator in names:
            try:
                op = find_overload("aten::" + operator)
            except AttributeError:
                continue
            library.impl(operator, _casting(op, name, chosen), "AutocastPrivateUse1")
    _redirect_cuda(name)


def _casting(op: Any, name: str, chosen: Callable[[str, Any], torch.dtype | None]) -> Callable[..., Any]:
    core: Any = torch._C
    autocast = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            eligible = value.dtype in _FLOATS and value.dtype is not dtype and value.device.type == name
            return value.to(dtype) if eligible else value
        if isinstance(value, (list, tuple)):
            return [cast(item, dtype) for item in value]
        return value

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        dtype = chosen(name, arguments)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            if dtype is None:
                return op(*arguments, **keywords)
            return op(*[cast(a, dtype) for a in arguments], **{k: cast(v, dtype) for k, v in keywords.items()})

    return kernel


def _lower(name: str, _arguments: Any) -> torch.dtype | None:
    return torch.get_autocast_dtype(name)


def _float32(_name: str, _arguments: Any) -> torch.dtype | None:
    return torch.float32


def _widest(_name: str, arguments: Any) -> torch.dtype | None:
    found: torch.dtype | None = None
    pending = list(arguments)
    while pending:
        value = pending.pop(0)
        if isinstance(value, (list, tuple)):
            pending[:0] = value
        elif isinstance(value, Tensor) and value.dtype in _FLOATS and (found is None or value.dtype is torch.float32):
            found = value.dtype
    return found


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
        is_meant = device_type == "cuda" and torch.cuda.is_bf16_supported is not stock
        original(self, name if is_meant else device_type, *arguments, **keywords)

    autocast.__init__ = init
