"""neuronx_distributed.parallel_layers.layers: linear layers and embeddings that are sharded among ranks.

The full weight is initialized as in torch's layer and then sharded. With the same seed on all ranks, the shards
together equal the weight of torch's layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional
from torch import Tensor, nn

from . import mappings, parallel_state
from .utils import divide, refuse_keywords
from .utils import param_is_not_tensor_parallel_duplicate as param_is_not_tensor_parallel_duplicate
from .utils import set_tensor_model_parallel_attributes as set_tensor_model_parallel_attributes

Init = Callable[[Tensor], Any]


def _default_init(weight: Tensor) -> Tensor:
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


def _part(whole: Tensor, dim: int, device: Any) -> nn.Parameter:
    parameter = nn.Parameter(mappings._part(whole.detach(), dim).to(device))
    set_tensor_model_parallel_attributes(parameter, True, dim)
    return parameter


class _ParallelLinear(nn.Module):
    """The base of the two linear layers. `input_size` and `output_size` are the sizes of the full layer."""

    cut_dim: int
    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
        stride: int = 1,
        init_method: Init | None = None,
        sequence_parallel_enabled: bool = False,
        keep_master_weight: bool = False,
        **unknown: Any,
    ) -> None:
        super().__init__()
        refuse_keywords(type(self).__name__, [*unknown, "stride"] if stride != 1 else unknown)
        self.input_size, self.output_size = input_size, output_size
        self.sequence_parallel_enabled = sequence_parallel_enabled
        whole = torch.empty(output_size, input_size, dtype=dtype, device="cpu")
        (init_method or _default_init)(whole)
        self.weight = _part(whole, self.cut_dim, device)
        self.master_weight = whole if keep_master_weight else None
        if not bias:
            self.bias = None
            return
        bound = 1 / math.sqrt(input_size)
        values = nn.init.uniform_(torch.empty(output_size, dtype=dtype, device="cpu"), -bound, bound)
        self.bias = self._bias(values, device)

    def _bias(self, values: Tensor, device: Any) -> nn.Parameter:
        raise NotImplementedError


class ColumnParallelLinear(_ParallelLinear):
    """A linear layer whose outputs are sharded among the ranks; with `gather_output` each rank gets all outputs."""

    cut_dim = 0

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, gather_output: bool = True, **keywords: Any
    ) -> None:
        super().__init__(input_size, output_size, bias, **keywords)
        self.gather_output = gather_output
        self.output_size_per_partition = self.weight.shape[0]

    def _bias(self, values: Tensor, device: Any) -> nn.Parameter:
        return _part(values, 0, device)

    def forward(self, value: Tensor) -> Tensor:
        if self.sequence_parallel_enabled:
            whole = mappings.gather_from_sequence_parallel_region(value)
        else:
            whole = mappings.copy_to_tensor_model_parallel_region(value)
        result = nn.functional.linear(whole, self.weight, self.bias)
        return mappings.gather_from_tensor_model_parallel_region(result) if self.gather_output else result


class RowParallelLinear(_ParallelLinear):
    """A linear layer whose inputs are sharded among the ranks; the outputs are summed over the ranks.

    With `input_is_parallel` the input is already this rank's shard, such as the output of ColumnParallelLinear.
    """

    cut_dim = 1

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, input_is_parallel: bool = False, **keywords: Any
    ) -> None:
        super().__init__(input_size, output_size, bias, **keywords)
        self.input_is_parallel = input_is_parallel
        self.input_size_per_partition = self.weight.shape[1]

    def _bias(self, values: Tensor, device: Any) -> nn.Parameter:
        parameter = nn.Parameter(values.to(device))
        if self.sequence_parallel_enabled:
            parameter.sequence_parallel_enabled = True  # type: ignore[attr-defined]
        return parameter

    def forward(self, value: Tensor) -> Tensor:
        """Returns the outputs, the same on all ranks; with sequence parallelism, this rank's shard."""
        part = value if self.input_is_parallel else mappings.scatter_to_tensor_model_parallel_region(value)
        result = nn.functional.linear(part, self.weight)
        if self.sequence_parallel_enabled:
            result = mappings.reduce_scatter_to_sequence_parallel_region(result)
        else:
            result = mappings.reduce_from_tensor_model_parallel_region(result)
        return result if self.bias is None else result + self.bias


class ParallelEmbedding(nn.Module):
    """An embedding whose vocabulary is sharded among the ranks."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        init_method: Init = nn.init.normal_,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        refuse_keywords("ParallelEmbedding", unknown)
        size = divide(num_embeddings, parallel_state.get_tensor_model_parallel_size())
        self.start_index = parallel_state.get_tensor_model_parallel_rank() * size
        self.end_index = self.start_index + size
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        whole = torch.empty(num_embeddings, embedding_dim, dtype=dtype, device="cpu")
        init_method(whole)
        if padding_idx is not None:
            with torch.no_grad():
                whole[padding_idx].zero_()
        self.weight = _part(whole, 0, device)

    def forward(self, words: Tensor) -> Tensor:
        is_elsewhere = (words < self.start_index) | (words >= self.end_index)
        own = (words - self.start_index).masked_fill(is_elsewhere, 0)
        rows = nn.functional.embedding(own, self.weight)
        if self.padding_idx is not None:
            is_elsewhere = is_elsewhere | (words == self.padding_idx)  # the padding row stays zero, without a gradient
        return mappings.reduce_from_tensor_model_parallel_region(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0.0))
