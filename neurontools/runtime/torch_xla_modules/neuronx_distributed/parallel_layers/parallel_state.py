"""neuronx_distributed.parallel_layers.parallel_state: the tensor-parallel and data-parallel groups of ranks.

Consecutive ranks divide the weights among themselves: with 8 ranks and `tensor_model_parallel_size=2` the
tensor-parallel groups are [0, 1], [2, 3], … and the data-parallel groups [0, 2, 4, 6] and [1, 3, 5, 7].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
import torch_xla.core.xla_model as xm

from neurontools.runtime.execution.rank_threads import recorded_rank, recording_as

_Groups = list[list[int]]
_SEED_OFFSET = 2718  # number added to the seed that model_parallel_xla_manual_seed gets


class _State:
    """The rank groups of this job, and the torch.distributed groups created for them so far."""

    def __init__(self, tensor_size: int, ranks: int) -> None:
        self.tensor: _Groups = [list(range(first, first + tensor_size)) for first in range(0, ranks, tensor_size)]
        self.data: _Groups = [list(range(first, ranks, tensor_size)) for first in range(tensor_size)]
        self.by_name: dict[str, Any] = {}


class RecordedGroup:
    """The group of a rank whose model is traced: its size and its members. It runs no collectives of torch."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = [*ranks]

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self.ranks.index(xm.get_ordinal())


_state: _State | None = None
_is_aot = False


@contextmanager
def traced_as(rank: int, size: int, tensor_size: int) -> Iterator[None]:
    """Makes this process rank `rank` of `size` ranks during the block, without torch.distributed and without peers."""
    global _state
    before = _state
    with recording_as(rank, size):
        _state = _State(tensor_size, size)
        try:
            yield
        finally:
            _state = before


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    **hints: Any,
) -> None:
    """Creates the rank groups. Raises ValueError if they can't all have the same size. Ignores `hints`."""
    global _state
    others = {
        "pipeline_model_parallel_size": pipeline_model_parallel_size,
        "context_parallel_size": context_parallel_size,
        "expert_model_parallel_size": expert_model_parallel_size,
    }
    for name, size in others.items():
        if size != 1:
            raise NotImplementedError(
                f"neuronx_distributed: {name}={size} is not part of the simulated runtime; use tensor and data "
                "parallelism"
            )
    if _state is not None:
        raise RuntimeError("model parallelism is initialized already; call destroy_model_parallel() before")
    size = xm.xrt_world_size()
    if tensor_model_parallel_size < 1 or size % tensor_model_parallel_size:
        raise ValueError(
            f"tensor_model_parallel_size={tensor_model_parallel_size}: {size} rank(s) can't be divided evenly by this; "
            "give a divisor"
        )
    _state = _State(tensor_model_parallel_size, size)


def set_aot_mode(mode: bool) -> None:
    """Sets whether graphs are for all ranks, so that their operators must not depend on the rank of this process."""
    global _is_aot
    _is_aot = mode


def get_aot_mode() -> bool:
    return _is_aot


def model_parallel_is_initialized() -> bool:
    return _state is not None


def destroy_model_parallel() -> None:
    global _state
    _state = None


def _groups() -> _State:
    if _state is not None:
        return _state
    if xm.xrt_world_size() > 1:
        raise RuntimeError("model parallelism is not initialized; call initialize_model_parallel() before")
    return _State(1, 1)


def _own(groups: _Groups) -> list[int]:
    rank = xm.get_ordinal()
    return next(group for group in groups if rank in group)


def _group(kind: str, groups: _Groups, as_list: bool) -> Any:
    """Returns this rank's torch.distributed group, or with `as_list` all groups as lists of ranks for torch_xla."""
    if as_list:
        return groups
    if recorded_rank() is not None or (not dist.is_initialized() and xm.xrt_world_size() == 1):
        return RecordedGroup(_own(groups))
    by_name = _groups().by_name
    if kind not in by_name:
        if not dist.is_initialized():
            raise RuntimeError(
                f"the {kind}-parallel group of torch.distributed needs init_process_group('xla') before; or use "
                "as_list=True"
            )
        by_name[kind] = dist.new_subgroups_by_enumeration(groups)[0]
    return by_name[kind]


def get_tensor_model_parallel_group(as_list: bool = False) -> Any:
    """Returns this rank's tensor-parallel group (ranks that shard the weights), or with `as_list` all groups."""
    return _group("tensor", _groups().tensor, as_list)


def get_data_parallel_group(as_list: bool = False) -> Any:
    """Returns this rank's data-parallel group (ranks with the same weights), or with `as_list` all groups."""
    return _group("data", _groups().data, as_list)


def get_world_group(as_list: bool = False) -> Any:
    """Returns the group of all ranks, or with `as_list` a list with it."""
    return _group("world", [[*range(xm.xrt_world_size())]], as_list)


def get_tensor_model_parallel_replica_groups() -> _Groups:
    return _groups().tensor


def get_data_parallel_replica_groups() -> _Groups:
    return _groups().data


def get_tensor_model_parallel_size() -> int:
    return len(_groups().tensor[0])


def get_tensor_model_parallel_rank() -> int:
    return _own(_groups().tensor).index(xm.get_ordinal())


def get_tensor_model_parallel_src_rank() -> int:
    """Returns the first rank of this rank's tensor-parallel group."""
    return _own(_groups().tensor)[0]


def get_data_parallel_size() -> int:
    return len(_groups().data[0])


def get_data_parallel_rank() -> int:
    return _own(_groups().data).index(xm.get_ordinal())


def get_data_parallel_src_rank() -> int:
    return _own(_groups().data)[0]


def get_pipeline_model_parallel_size() -> int:
    """Returns 1: pipeline parallelism is not supported."""
    return 1


def get_pipeline_model_parallel_rank() -> int:
    """Returns 0: pipeline parallelism is not supported."""
    return 0


def model_parallel_xla_manual_seed(seed: int) -> None:
    """Seeds the device. Data-parallel ranks get the same seed; tensor-parallel ranks get different seeds."""
    xm.set_rng_state(seed + _SEED_OFFSET + get_tensor_model_parallel_rank())
