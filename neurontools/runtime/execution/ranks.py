"""The gloo groups that the ranks of a run make, by number: 0 is that of all ranks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_TIMEOUT = timedelta(minutes=30)
_groups: list[Any] = []
_sizes: list[int] = []  # of the groups; plain numbers, which Dynamo can go by where it can't ask a group
_own_rank: list[int] = []  # this process's in the first group
_stores: list[Any] = []
_subgroups: dict[tuple[int, ...], int] = {}


def of_this_start(store: Any) -> Any:
    """What is in a store of this start of the ranks: torchrun keeps its store when it restarts them, and with it the
    addresses of those that have ended.
    """
    return dist.PrefixStore(f"neuron-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def add(group: Any, store: Any) -> int:
    """Keeps a group, and for the first one the store where ranks meet; the group's number."""
    if not _groups:
        _stores.append(store)
        _own_rank.append(int(group.rank()))
    _groups.append(group)
    _sizes.append(int(group.size()))
    return len(_groups) - 1


@atexit.register
def _leave_all() -> None:
    """Before the interpreter ends: the threads of a group may hold tensors, and one that lets go of a tensor when there
    is no interpreter any more aborts the process. A group that was given up (see deadline) stays.
    """
    _groups.clear()
    _sizes.clear()


def world() -> Any:
    """The group of all ranks, made by init_process_group; None before it."""
    return _groups[0] if _groups else None


def meeting_place() -> Any:
    """The store where the ranks met; None before they did, or where there is one rank."""
    return _stores[0] if _stores and _sizes and _sizes[0] > 1 else None


def have_met() -> bool:
    """Whether there is a group of all ranks."""
    return bool(_sizes)


def own_rank() -> int | None:
    """The number of this process among all ranks; None before they met."""
    return _own_rank[0] if _sizes else None


def group_of(number: int) -> Any:
    """The group with a number; IndexError if there is none."""
    return _groups[number]


def ensure_world() -> int:
    """The number of ranks; joins the gloo group of torchrun's ranks when the script made no process group itself."""
    if _sizes:
        return _sizes[0]
    size = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if size > 1:
        found, rank, size = next(dist.rendezvous("env://"))
        store = of_this_start(found)
        add(dist.ProcessGroupGloo(dist.PrefixStore("neuron-world", store), rank, size, _TIMEOUT), store)
    return _sizes[0] if _sizes else 1


def subgroup(groups: Sequence[Sequence[int]] | None) -> int:
    """The number of the group that this rank is in, of groups as torch_xla's `groups=[[0, 1], [2, 3]]` has them."""
    if not groups or ensure_world() == 1:
        return 0
    rank = _own_rank[0]
    members = next((tuple(g) for g in groups if rank in g), None)
    if members is None:
        raise ValueError(f"groups={list(groups)}: rank {rank} is in none of them")
    if len(members) == _sizes[0]:
        return 0
    if members not in _subgroups:
        prefixed = dist.PrefixStore(f"neuron-{members}", _stores[0])
        _subgroups[members] = add(
            dist.ProcessGroupGloo(prefixed, members.index(rank), len(members), _TIMEOUT), _stores[0]
        )
    return _subgroups[members]


def rank_in_group(rank: int, groups: Sequence[Sequence[int]] | None) -> int:
    """The number that a rank of the job has in its group of `groups`, as `subgroup` makes them."""
    members = next((tuple(g) for g in groups or () if rank in g), None)
    return rank if members is None or len(members) == _sizes[0] else members.index(rank)


def group_size(group: int) -> int:
    """How many ranks a group has; 1 without any group."""
    return _sizes[group] if _sizes else 1
