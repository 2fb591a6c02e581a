"""Process groups over gloo: ranks, channels, collectives, and the wait for other ranks.

Group 0 has all ranks. A sent tensor waits in the rendezvous store, so a sender never waits for a receiver; a channel
keeps the order of its tensors. gloo does not report waiting time. So in every 61st collective, and in the 1st, 2nd,
4th, 8th and so on, the ranks meet first: the time until then is waiting, the rest is the collective's own work. Other
collectives waited for the excess over it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.counting.step_clock import COLLECTIVE, step_clock
from neurontools.runtime.execution.policy import ExecutionFailed, deadline
from neurontools.runtime.tensors.buffers import Tensor

_REDUCE_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "mul": dist.ReduceOp.PRODUCT,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}


class CollectiveFailed(ExecutionFailed):
    """A collective did not complete: a peer died, or the ranks did not do the same things in the same order."""

    def __init__(self, kind: str, cause: BaseException) -> None:
        super().__init__(
            NrtStatus.EXEC_HW_ERR_COLLECTIVES,
            f"{kind} did not complete ({(str(cause) or type(cause).__name__).splitlines()[0]}); another rank ended "
            "or executed other collectives: look at the output of the other ranks",
        )


def run_collective(
    kind: str, number: int, nbytes: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str, root: int
) -> float:
    """One collective of the group with this number, complete on return; how long it waited for other ranks, in seconds.

    CollectiveFailed, or ExecutionFailed after the deadline.
    """
    group = group_of(number)
    try:
        return collective_wait.carry_out(
            kind,
            number,
            group,
            nbytes,
            lambda: _FUNCTIONS[kind](group, list(outputs), list(inputs), reduction, root),
        )
    except ExecutionFailed:
        raise
    except RuntimeError as error:
        raise CollectiveFailed(kind, error) from error


def _all_reduce(group: Any, outputs: list[Tensor], _inputs: list[Tensor], reduction: str, _root: int) -> None:
    average = reduction == "avg"
    works = []
    contiguous = [t if t.is_contiguous() else t.contiguous() for t in outputs]
    for tensor in contiguous:
        options = dist.AllreduceOptions()
        options.reduceOp = _REDUCE_OPS["sum" if average else reduction]
        works.append(group.allreduce([tensor], options))
    for work in works:
        deadline.wait(group, work)
    for tensor, original in zip(contiguous, outputs, strict=True):
        if average:
            tensor.div_(group.size())
        if tensor is not original:
            original.copy_(tensor)


def _broadcast(group: Any, outputs: list[Tensor], _inputs: list[Tensor], _reduction: str, root: int) -> None:
    for tensor in outputs:
        contiguous = tensor.contiguous()
        options = dist.BroadcastOptions()
        options.rootRank = root
        deadline.wait(group, group.broadcast([contiguous], options))
        if contiguous is not tensor:
            tensor.copy_(contiguous)


def _all_gather(group: Any, outputs: list[Tensor], inputs: list[Tensor], _reduction: str, _root: int) -> None:
    contiguous = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in outputs]
    deadline.wait(group, group.allgather([contiguous], [inputs[0].contiguous()]))
    for tensor, original in zip(contiguous, outputs, strict=True):
        original.copy_(tensor)


def _reduce_scatter(group: Any, outputs: list[Tensor], inputs: list[Tensor], reduction: str, _root: int) -> None:
    summed = [t.clone(memory_format=torch.contiguous_format) for t in inputs]
    _all_reduce(group, summed, [], reduction, 0)
    outputs[0].copy_(summed[group.rank()])


def _all_to_all(group: Any, outputs: list[Tensor], inputs: list[Tensor], _reduction: str, _root: int) -> None:
    rank, size = group.rank(), group.size()
    outputs[rank].copy_(inputs[rank])
    received = {peer: torch.empty_like(outputs[peer], memory_format=torch.contiguous_format) for peer in range(size)}
    works = []
    for peer in range(size):
        if peer != rank:
            works.append(group.send([inputs[peer].contiguous()], peer, 7))
            works.append(group.recv([received[peer]], peer, 7))
    for work in works:
        deadline.wait(group, work)
    for peer in range(size):
        if peer != rank:
            outputs[peer].copy_(received[peer])


def _gather(group: Any, outputs: list[Tensor], inputs: list[Tensor], _reduction: str, root: int) -> None:
    options = dist.GatherOptions()
    options.rootRank = root
    contiguous = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in outputs]
    deadline.wait(group, group.gather([contiguous] if contiguous else [], [inputs[0].contiguous()], options))
    for tensor, original in zip(contiguous, outputs, strict=True):
        original.copy_(tensor)


def _scatter(group: Any, outputs: list[Tensor], inputs: list[Tensor], _reduction: str, root: int) -> None:
    options = dist.ScatterOptions()
    options.rootRank = root
    received = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
    deadline.wait(group, group.scatter([received], [[t.contiguous() for t in inputs]] if inputs else [], options))
    outputs[0].copy_(received)


def _send(group: Any, _outputs: list[Tensor], inputs: list[Tensor], _reduction: str, peer: int) -> None:
    deadline.wait(group, group.send([inputs[0].contiguous()], peer, 0))


def _receive(group: Any, outputs: list[Tensor], _inputs: list[Tensor], _reduction: str, peer: int) -> None:
    received = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
    deadline.wait(group, group.recv([received], peer, 0))
    outputs[0].copy_(received)


def _permute(group: Any, outputs: list[Tensor], inputs: list[Tensor], routes: str, _root: int) -> None:
    """Each rank sends its tensor to one, along the routes `source>target`; who gets none keeps what it has."""
    rank = group.rank()
    works, received = [], None
    for route in routes.split():
        source, target = map(int, route.split(">"))
        if source == target == rank:
            outputs[0].copy_(inputs[0])
        elif source == rank:
            works.append(group.send([inputs[0].contiguous()], target, 9))
        elif target == rank:
            received = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
            works.append(group.recv([received], source, 9))
    for work in works:
        deadline.wait(group, work)
    if received is not None:
        outputs[0].copy_(received)


_FUNCTIONS: dict[str, Callable[[Any, list[Tensor], list[Tensor], str, int], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "receive": _receive,
    "permute": _permute,
}


_TIMEOUT = timedelta(minutes=30)
_groups: list[Any] = []
_sizes: list[int] = []  # of the groups; plain numbers, which Dynamo can go by where it can't ask a group
_own_rank: list[int] = []  # this process's in the first group
_stores: list[Any] = []
_subgroups: dict[tuple[int, ...], int] = {}


def prefix_store_of_start(store: Any) -> Any:
    """What is in a store of this start of the ranks: torchrun keeps its store when it restarts them, and with it the
    addresses of those that have ended.
    """
    return dist.PrefixStore(f"neuron-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def add_process_group(group: Any, store: Any) -> int:
    """Keeps a group, and for the first one the store where ranks meet; the group's number."""
    if not _groups:
        _stores.append(store)
        _own_rank.append(int(group.rank()))
    _groups.append(group)
    _sizes.append(int(group.size()))
    return len(_groups) - 1


@atexit.register
def _destroy_groups() -> None:
    """Before the interpreter ends: the threads of a group may hold tensors, and one that lets go of a tensor when there
    is no interpreter any more aborts the process. A group that was given up (see deadline) stays.
    """
    _groups.clear()
    _sizes.clear()


def world_group() -> Any:
    """The group of all ranks, made by init_process_group; None before it."""
    return _groups[0] if _groups else None


def rendezvous_store() -> Any:
    """The store where the ranks met; None before they did, or where there is one rank."""
    return _stores[0] if _stores and _sizes and _sizes[0] > 1 else None


def has_joined_world() -> bool:
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
        store = prefix_store_of_start(found)
        add_process_group(dist.ProcessGroupGloo(dist.PrefixStore("neuron-world", store), rank, size, _TIMEOUT), store)
    return _sizes[0] if _sizes else 1


def join_subgroup(groups: Sequence[Sequence[int]] | None) -> int:
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
        _subgroups[members] = add_process_group(
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


_sent: dict[int, int] = {}
_received: dict[int, int] = {}
_here: dict[str, bytes] = {}


def send_on_channel(channel: int, value: Tensor) -> None:
    """Sends a CPU tensor."""
    number = _sent[channel] = _sent.get(channel, 0) + 1
    payload = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    store = rendezvous_store()
    if store is None:
        _here[_channel_key(channel, number)] = payload
    else:
        store.set(_channel_key(channel, number), payload)


def receive_on_channel(channel: int, like: Tensor) -> Tensor:
    """Waits for the next tensor of a channel, which has the shape and type of `like`; a CPU tensor.

    RuntimeError where the job has one rank and nothing was sent; ValueError for a tensor of another size.
    """
    number = _received[channel] = _received.get(channel, 0) + 1
    key = _channel_key(channel, number)
    store: Any = rendezvous_store()
    if store is not None:
        entry = step_clock.open(COLLECTIVE, time.perf_counter())
        try:
            payload = store.get(key)
        finally:
            step_clock.close(entry, time.perf_counter())
        store.delete_key(key)
    elif key in _here:
        payload = _here.pop(key)
    else:
        raise RuntimeError(f"recv: nothing was sent through channel {channel}, and this job has no other rank")
    if len(payload) != like.numel() * like.element_size():
        raise ValueError(
            f"recv: {len(payload)} bytes came through channel {channel} for a tensor of "
            f"{like.numel() * like.element_size()}; send and receive tensors of one shape and type"
        )
    flat = torch.frombuffer(bytearray(payload), dtype=like.dtype) if payload else torch.empty(0, dtype=like.dtype)
    return flat.reshape(like.shape)


def _channel_key(channel: int, number: int) -> str:
    return f"neuron-channel-{channel}-{number}"


_MEASURE_EVERY = 61  # a prime: among the collectives of a step each has its turn
_LATEST = 5  # meetings by whose median the work is known, so that a moment of a busy machine is not
_PAIRWISE = frozenset({"send", "receive", "permute"})  # not all ranks of the group take part

CollectiveKey = tuple[str, int, int]
"""A kind, the number of a group, and the bit length of the bytes."""


class CollectiveWait:
    """Tells the waits of the collectives of this process, whose ranks all carry out the same ones in one order."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}
        self._met_seconds: dict[CollectiveKey, deque[float]] = {}
        self._work_seconds: dict[CollectiveKey, float] = {}

    def carry_out(self, kind: str, number: int, group: Any, nbytes: int, work: Callable[[], None]) -> float:
        """Carries out one collective; how long it waited, in seconds. Raises what `work` raises."""
        count = self._counts.get((kind, number), 0)
        self._counts[kind, number] = count + 1
        began = time.perf_counter()
        meets = kind not in _PAIRWISE and (not count % _MEASURE_EVERY or not count & (count - 1))
        if meets:
            deadline.wait(group, group.allreduce([torch.zeros(1)]))
        met = time.perf_counter()
        work()
        ended = time.perf_counter()
        key = (kind, number, nbytes.bit_length())
        known = self._work_seconds.get(key)
        seconds = ended - met
        if meets:
            latest = self._met_seconds.setdefault(key, deque(maxlen=_LATEST))
            latest.append(seconds)
            self._work_seconds[key] = sorted(latest)[len(latest) // 2]
            return met - began
        if kind in _PAIRWISE:
            # Nobody can say when the other began: the shortest so far stands for one without waiting.
            known = self._work_seconds[key] = seconds if known is None else min(known, seconds)
        elif known is None:
            known = self._like(kind, number, nbytes)
        return max(0.0, seconds - known)

    def _like(self, kind: str, number: int, nbytes: int) -> float:
        """The work of one of this size, by the nearest size that is known: as much for fewer bytes, in proportion for
        more.
        """
        bits = nbytes.bit_length()
        sizes = [key[2] for key in self._work_seconds if key[:2] == (kind, number)]
        if not sizes:
            return inf  # the first one failed
        nearest = min(sizes, key=lambda size: abs(size - bits))
        return self._work_seconds[kind, number, nearest] * 2.0 ** max(0, bits - nearest)


collective_wait = CollectiveWait()
