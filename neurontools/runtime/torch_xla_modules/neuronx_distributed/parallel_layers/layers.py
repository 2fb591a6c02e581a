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
import torch_xla.core.xla_model as xm
from torch import Tensor, nn

from . import mappings, parallel_state
from .utils import divide, get_padding_length, refuse_keywords
from .utils import param_is_not_tensor_parallel_duplicate as param_is_not_tensor_parallel_duplicate
from .utils import set_tensor_model_parallel_attributes as set_tensor_model_parallel_attributes

Init = Callable[[Tensor], Any]


def _default_init(weight: Tensor) -> Tensor:
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


def _part(whole: Tensor, dim: int, device: Any) -> nn.Parameter:
    parameter = nn.Parameter(mappings._part(whole.detach(), dim).to(device), requires_grad=whole.is_floating_point())
    set_tensor_model_parallel_attributes(parameter, True, dim, 1, parallel_state.get_tensor_model_parallel_size())
    return parameter


def _padded(value: Tensor, dim: int, length: int) -> Tensor:
    """Returns a tensor with zeros added at the end of a dimension."""
    return nn.functional.pad(value, (*([0, 0] * (value.dim() - 1 - dim % value.dim())), 0, length)) if length else value


def _check_group(group: Any) -> None:
    if group is not None and group.size() != parallel_state.get_tensor_model_parallel_size():
        raise NotImplementedError(
            f"tensor_model_parallel_group has {group.size()} ranks, the tensor-parallel group has "
            f"{parallel_state.get_tensor_model_parallel_size()}: other groups are not part of the simulated runtime; "
            "leave it out"
        )


class _ShardedLayer(nn.Module):
    """A layer whose weight is sharded along `cut_dim`, with `pad_size` rows of zeros so that all shards are equal."""

    cut_dim: int
    pad = False
    pad_size = 0
    weight: nn.Parameter

    def preshard_hook(self, model_state_dict: dict[str, Tensor], prefix: str) -> None:
        """Pads the full weight in a state dictionary, so that it can be sharded. `prefix` is its name."""
        model_state_dict[prefix] = _padded(model_state_dict[prefix], self.cut_dim, self.pad_size)

    def _find_pad_size(self, size: int, *, pad: bool) -> int:
        """Returns the size to shard, with the padding that `pad` asks for."""
        self.pad = pad
        self.pad_size = get_padding_length(size, parallel_state.get_tensor_model_parallel_size()) if pad else 0
        return size + self.pad_size

    def _check_padding(self) -> None:
        if self.pad and self.training:
            raise RuntimeError(f"{type(self).__name__}: pad=True is for inference only; call model.eval() before")


class _ParallelLinear(_ShardedLayer):
    """The base of the two linear layers. `input_size` and `output_size` are the sizes of the full layer."""

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
        pad: bool = False,
        tensor_model_parallel_group: Any = None,
        reduce_dtype: torch.dtype | None = None,
        sequence_dimension: int | None = None,
        **unknown: Any,
    ) -> None:
        """Ignores `reduce_dtype`: values are summed in their own type. Shards a sequence along dimension 0 only."""
        super().__init__()
        if sequence_dimension:
            refuse_keywords(type(self).__name__, ["sequence_dimension"])
        refuse_keywords(type(self).__name__, [*unknown, "stride"] if stride != 1 else unknown)
        _check_group(tensor_model_parallel_group)
        self.input_size, self.output_size = input_size, output_size
        self.sequence_parallel_enabled = sequence_parallel_enabled
        whole = torch.empty(output_size, input_size, dtype=dtype, device="cpu")
        (init_method or _default_init)(whole)
        self._find_pad_size(whole.shape[self.cut_dim], pad=pad)
        self.weight = _part(_padded(whole, self.cut_dim, self.pad_size), self.cut_dim, device)
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
        return _part(_padded(values, 0, self.pad_size), 0, device)

    def preshard_hook(self, model_state_dict: dict[str, Tensor], prefix: str) -> None:
        super().preshard_hook(model_state_dict, prefix)
        bias = prefix.removesuffix("weight") + "bias"
        if bias in model_state_dict:
            super().preshard_hook(model_state_dict, bias)

    def forward(self, value: Tensor) -> Tensor:
        """Returns the outputs; without `gather_output`, this rank's shard of them, which may end with padding."""
        self._check_padding()
        if self.sequence_parallel_enabled:
            whole = mappings.gather_from_sequence_parallel_region(value)
        else:
            whole = mappings.copy_to_tensor_model_parallel_region(value)
        result = nn.functional.linear(whole, self.weight, self.bias)
        if not self.gather_output:
            return result
        result = mappings.gather_from_tensor_model_parallel_region(result)
        return result.narrow(-1, 0, self.output_size) if self.pad_size else result


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
        self._check_padding()
        if self.input_is_parallel:
            part = value
        else:
            part = mappings.scatter_to_tensor_model_parallel_region(_padded(value, -1, self.pad_size))
        result = nn.functional.linear(part, self.weight)
        if self.sequence_parallel_enabled:
            result = mappings.reduce_scatter_to_sequence_parallel_region(result)
        else:
            result = mappings.reduce_from_tensor_model_parallel_region(result)
        return result if self.bias is None else result + self.bias


class ParallelEmbedding(_ShardedLayer):
    """An embedding whose vocabulary is sharded among the ranks, or its dimension with `shard_across_embedding`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        init_method: Init = nn.init.normal_,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
        shard_across_embedding: bool = False,
        pad: bool = False,
        sequence_parallel_enabled: bool = False,
        tensor_model_parallel_group: Any = None,
        use_spmd_rank: bool = False,
        **unknown: Any,
    ) -> None:
        super().__init__()
        refuse_keywords("ParallelEmbedding", unknown)
        _check_group(tensor_model_parallel_group)
        if sequence_parallel_enabled:
            refuse_keywords("ParallelEmbedding", ["sequence_parallel_enabled"])
        size = parallel_state.get_tensor_model_parallel_size()
        self.shard_across_embedding = shard_across_embedding
        self.cut_dim = int(shard_across_embedding)
        padded_size = self._find_pad_size((num_embeddings, embedding_dim)[self.cut_dim], pad=pad)
        length = divide(padded_size, size)
        self.start_index = parallel_state.get_tensor_model_parallel_rank() * length
        self.end_index = self.start_index + length
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.rank_util = SPMDRank(size) if use_spmd_rank else None
        whole = torch.empty(num_embeddings, embedding_dim, dtype=dtype, device="cpu")
        init_method(whole)
        if padding_idx is not None:
            with torch.no_grad():
                whole[padding_idx].zero_()
        self.weight = _part(_padded(whole, self.cut_dim, self.pad_size), self.cut_dim, device)

    def forward(self, words: Tensor) -> Tensor:
        """Returns the embeddings of words, the same on all ranks."""
        self._check_padding()
        if self.shard_across_embedding:
            rows = nn.functional.embedding(words, self.weight, self.padding_idx)
            return mappings.gather_from_tensor_model_parallel_region(rows).narrow(-1, 0, self.embedding_dim)
        rank = mappings.own_rank(words.device) if self.rank_util is None else self.rank_util.get_rank()
        start = rank * self.weight.shape[0]
        is_elsewhere = (words < start) | (words >= start + self.weight.shape[0])
        own = (words - start).masked_fill(is_elsewhere, 0)
        rows = nn.functional.embedding(own, self.weight)
        if self.padding_idx is not None:
            is_elsewhere = is_elsewhere | (words == self.padding_idx)  # the padding row stays zero, without a gradient
        return mappings.reduce_from_tensor_model_parallel_region(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0.0))


class SPMDRank(nn.Module):
    """The rank as a weight, for a graph that all ranks share. `rank` is this rank's shard of `arange(world_size)`."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size
        self.rank = nn.Parameter(torch.tensor([xm.get_ordinal()], dtype=torch.int32), requires_grad=False)
        set_tensor_model_parallel_attributes(self.rank, True, 0, 1, world_size)

    def preshard_hook(self, model_state_dict: dict[str, Tensor], prefix: str) -> None:
        """Adds the ranks to a state dictionary without them."""
        name = prefix.removesuffix("weight") + "rank"
        model_state_dict.setdefault(name, torch.arange(self.world_size, dtype=torch.int32))

    def get_rank(self) -> Tensor:
        return self.rank
