"""Collectives with the names of torch_xla. They are recorded into the graph and executed in its order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from neurontools.runtime.execution.gloo import (
    ensure_world,
    group_size,
    join_subgroup,
    rank_in_group,
    receive_on_channel,
    send_on_channel,
)
from neurontools.runtime.execution.process_group import collective
from neurontools.runtime.tensors.device import device as _device

Tensor = torch.Tensor
REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Reduces over the ranks.

    Returns a new tensor for one tensor; changes a list of tensors in place and returns it.
    """
    del pin_layout
    ensure_world()
    group = join_subgroup(groups)
    if isinstance(inputs, Tensor):
        result = inputs.clone()
        collective("all_reduce", [result], [], reduce_type, group=group)
        return result * scale if scale != 1.0 else result
    listed = list(inputs)
    if listed:
        collective("all_reduce", listed, [], reduce_type, group=group)
        if scale != 1.0:
            with torch.no_grad():
                for tensor in listed:
                    tensor.mul_(scale)
    return inputs


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """Concatenates the tensors of all ranks along a dimension."""
    del pin_layout, channel_id, use_global_device_ids
    if not isinstance(value, Tensor):
        results = [all_gather(v, dim, groups) for v in value]
        return _into(output, results)
    ensure_world()
    group = join_subgroup(groups)
    size = group_size(group)
    if size == 1:
        return _into(output, value.clone())
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(size)]
    collective("all_gather", parts, [value.detach()], group=group)
    return _into(output, torch.cat(parts, dim))


def all_gather_bucketized(
    input_list: list[Tensor],
    dim: int = 0,
    groups: Any = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """Like `all_gather` of a list, without buckets, because all collectives are in one graph."""
    del bucket_cap_mb
    return all_gather(_listed(input_list), dim, groups, output, pin_layout)


def reduce_scatter(
    reduce_type: str,
    input: Any,  # noqa: A002  (the name of torch_xla)
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces over the ranks and returns this rank's part along a dimension. For a list of tensors, returns a list."""
    del pin_layout
    if not isinstance(input, Tensor):
        results = [reduce_scatter(reduce_type, each, scale, scatter_dim, shard_count, groups) for each in input]
        return _into(output, results)
    ensure_world()
    group = join_subgroup(groups)
    parts = [part.contiguous() for part in input.detach().chunk(shard_count, scatter_dim)]
    if group_size(group) == 1:
        return _into(output, input * scale)
    result = torch.empty_like(parts[0])
    collective("reduce_scatter", [result], parts, reduce_type, group=group)
    return _into(output, result * scale if scale != 1.0 else result)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """Like `reduce_scatter` of a list, without buckets, because all collectives are in one graph."""
    del bucket_cap_mb
    return reduce_scatter(reduce_type, _listed(input_list), scale, scatter_dim, shard_count, groups, output, pin_layout)


def _listed(tensors: Any) -> list[Tensor]:
    if not isinstance(tensors, list) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(f"input_list is {type(tensors).__name__}; give a list of tensors")
    return tensors


def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> Tensor:
    """Sends a part of the tensor to each rank and concatenates the received parts."""
    del pin_layout
    ensure_world()
    group = join_subgroup(groups)
    parts = [part.contiguous() for part in value.detach().chunk(split_count, split_dimension)]
    if group_size(group) == 1:
        return value.clone()
    results = [torch.empty_like(part) for part in parts]
    collective("all_to_all", results, parts, group=group)
    return torch.cat(results, concat_dimension)


def _into(output: Any, value: Any) -> Any:
    if output is None:
        return value
    if isinstance(output, Tensor):
        output.copy_(value)
    else:
        for target, result in zip(output, value, strict=True):
            target.copy_(result)
    return output


def collective_broadcast(
    tensors: list[Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True
) -> None:
    """Broadcasts the tensors of one rank to all ranks, in place."""
    del pin_layout
    if ensure_world() > 1:
        group = join_subgroup(groups)
        root = rank_in_group(root_ordinal, groups)
        collective("broadcast", [tensor.data for tensor in tensors], [], root=root, group=group)


def all_reduce_bucketized_gradients(
    gradients: Iterable[Tensor], scale: float, groups: Any, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sums gradients over the ranks and scales them, in place. Ignores `bucket_cap_mb`: one graph reduces them all."""
    del bucket_cap_mb
    all_reduce(REDUCE_SUM, list(gradients), scale, groups, pin_layout)


def collective_permute(value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
    """Sends tensors between ranks by `pairs` of (source, target); a rank that is not a target gets zeros.

    Raises ValueError if a rank is the source or the target of two pairs.
    """
    size = ensure_world()
    sources, targets = [int(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs]
    if len({*sources}) < len(sources) or len({*targets}) < len(targets):
        raise ValueError(f"collective_permute: pairs={list(pairs)}: give each rank once as source and once as target")
    if outside := [rank for rank in (*sources, *targets) if not 0 <= rank < size]:
        raise ValueError(f"collective_permute: pairs={list(pairs)}: there is no rank {outside[0]}, but 0 to {size - 1}")
    result = torch.zeros_like(value, memory_format=torch.contiguous_format, requires_grad=False)
    if size == 1:
        return value.detach().clone() if sources else result
    routes = " ".join(f"{source}>{target}" for source, target in zip(sources, targets, strict=True))
    collective("permute", [result], [value.detach()], routes)
    return result


def send(value: Tensor, channel_id: int) -> Tensor:
    """Sends a tensor through a channel and returns it, without waiting for the receiver.

    Calls of `recv` with the same channel return the tensors in the order of sending.
    """
    ensure_world()
    send_on_channel(channel_id, value.detach().cpu())
    return value


def recv(output: Tensor, channel_id: int) -> Tensor:
    """Waits for the next tensor of a channel, copies it into `output` and returns `output`."""
    ensure_world()
    with torch.no_grad():
        return output.copy_(receive_on_channel(channel_id, output))


def optimization_barrier_(tensors: Iterable[Tensor]) -> None:
    """Does nothing: operators run in the order in which they were recorded."""
    del tensors


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] | None = None) -> list[bytes]:
    """Waits for all ranks, or the ranks in `replicas`, and returns their payloads by rank."""
    del tag
    _device.flush_all("Rendezvous")
    if ensure_world() <= 1:
        return [payload]
    return _gather_bytes(payload, join_subgroup([replicas] if replicas else None))


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits for all ranks, or the ranks in `ordinals`, and returns their payloads by rank."""
    return rendezvous(tag or "", payload, ordinals)


def _gather_bytes(payload: bytes, group: int) -> list[bytes]:
    size = group_size(group)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    collective("all_gather", lengths, [torch.tensor([len(payload)])], group=group)
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(max(1, longest), dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.zeros_like(padded) for _ in range(size)]
    collective("all_gather", gathered, [padded], group=group)
    return [bytes(g[: int(n)].tolist()) for g, n in zip(gathered, lengths, strict=True)]
