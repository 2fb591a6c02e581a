"""neuronx_distributed.parallel_layers.pad: heads of zeros, so that all ranks have the same number of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .layers import ColumnParallelLinear, RowParallelLinear, _padded
from .utils import get_padding_length, set_tensor_model_parallel_attributes


def get_number_of_extra_heads(n_head: int, tp_degree: int) -> int:
    """Returns the number of heads to add, so that each of `tp_degree` ranks gets the same number of heads."""
    return get_padding_length(n_head, tp_degree)


def pad_model(
    model: nn.Module,
    tp_degree: int,
    n_heads: int,
    wrapped_classes: Iterable[type] = (),
    pad_hook_fn: Callable[[nn.Module, float], Any] | None = None,
) -> nn.Module:
    """Enlarges the shards of parallel layers by zeros, in the ratio of padded heads to heads. Returns the same model.

    Changes only layers in modules of `wrapped_classes`; without classes, all layers. Calls `pad_hook_fn` for each
    module inside of them, with the ratio.
    """
    classes = tuple(wrapped_classes)
    ratio = (n_heads + get_number_of_extra_heads(n_heads, tp_degree)) / n_heads
    _pad(model, ratio, not classes or isinstance(model, classes), classes, pad_hook_fn)
    return model


def _pad(module: nn.Module, ratio: float, is_padded: bool, classes: tuple[type, ...], hook: Any) -> None:
    for child in module.children():
        _pad(child, ratio, is_padded or isinstance(child, classes), classes, hook)
    if not is_padded:
        return
    if hook is not None:
        hook(module, ratio)
    if isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
        dim = module.cut_dim
        module.weight = _with_zeros(module.weight, dim, ratio)
        if isinstance(module, ColumnParallelLinear) and module.bias is not None:
            module.bias = _with_zeros(module.bias, 0, ratio)


def _with_zeros(parameter: nn.Parameter, dim: int, ratio: float) -> nn.Parameter:
    size = parameter.shape[dim]
    result = nn.Parameter(_padded(parameter.detach(), dim, int(size * ratio) - size))
    marks: Any = parameter
    set_tensor_model_parallel_attributes(result, True, dim, marks.partition_stride, marks.num_partitions)
    return result
