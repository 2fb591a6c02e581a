"""Process groups over gloo: ranks, channels, collectives, and the wait for other ranks.

Group 0 has all ranks. A channel passes tensors from rank to rank in order. A sent tensor stays in the rendezvous store
until a rank receives it, so senders never wait.

gloo does not report how long a collective waits for other ranks. So before some collectives, the ranks synchronize with
a tiny all-reduce: its time is the wait, and the collective's own time is the work. The ranks synchronize before every
61st collective, and before the 1st, 2nd, 3rd, 5th, 9th and so on, counted by kind and group. For other collectives,
the wait is estimated: their time minus the work measured before.
"""

from __future__ import annotations

import atexit
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.counting.steps import COLLECTIVE, step_clock
from neurontools.runtime.execution.policy import ExecutionFailed, deadline
from neurontools.runtime.execution.rank_threads import group_number, recorded_rank, size_of_group
from neurontools.runtime.tensors.buffers import Tensor
from neurontools.util.signals import dropping_signals

REDUCTIONS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "mul", "BAND": "and", "BOR": "or"}
"""The reductions of torch.distributed.ReduceOp, and their names in graphs."""
_REDUCE_OPS: dict[str, Any] = {name: getattr(dist.ReduceOp, member) for member, name in REDUCTIONS.items()}


class CollectiveFailed(ExecutionFailed):
    """A collective failed because a peer died, or because the ranks ran different collectives."""

    def __init__(self, kind: str, cause: BaseException) -> None:
        super().__init__(
            NrtStatus.EXEC_HW_ERR_COLLECTIVES,
            f"{kind} did not complete ({(str(cause) or type(cause).__name__).splitlines()[0]}); another rank ended "
            "or executed other collectives: look at the output of the other ranks",
        )


def run_collective(
    kind: str, number: int, nbytes: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str, root: int
) -> float:
    """Runs one collective in a group and returns the seconds that it waited for other ranks.

    `number` is the number of the group. The collective is complete on return. Raises CollectiveFailed if gloo fails,
    and ExecutionFailed after the deadline.
    """
    group = group_of(number)
    try:
        return collective_wait.run_measured(
            kind, number, group, nbytes, lambda: _FUNCTIONS[kind](group, list(outputs), list(inputs), reduction, root)
        )
    except ExecutionFailed:
        raise
    except RuntimeError as error:
        failure = error
    # Outside of the handler, so that a pending Ctrl-C is raised first, and without the failure as its context.
    raise CollectiveFailed(kind, failure) from failure


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
    """Sends a tensor along each route, such as "0>1". A rank that receives nothing keeps its output unchanged."""
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
# The pause between two checks of the store grows with the wait, so a wait is at most a tenth too long.
_PAUSE_RATIO, _SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 0.0001, 0.02
_groups: list[Any] = []
_sizes: list[int] = []  # sizes of the groups as plain numbers, because Dynamo can't call a group's size()
_own_rank: list[int] = []  # the rank of this process in group 0; empty before group 0 exists
_stores: list[Any] = []
_device_stores: list[Any] = []  # for each group, the store with the devices of its ranks
_published: set[int] = set()  # numbers of the groups in whose store this rank has written its device
_subgroups: dict[tuple[int, ...], int] = {}
_owners: WeakValueDictionary[int, Any] = WeakValueDictionary()  # process groups of torch.distributed by group number


def prefix_store_of_start(store: Any) -> Any:
    """Returns torchrun's store with a key prefix: after a restart, the store still has addresses of ended ranks."""
    return dist.PrefixStore(f"neuron-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def build_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Builds a gloo group as soon as all its ranks do. Raises DistStoreError after `timeout`."""
    joined = store.add("joined", 1)
    key = f"all-{(joined - 1) // size}"  # these ranks may build several groups with one store
    if joined % size == 0:
        store.set(key, b"")
    _wait_for_key(store, key, timeout)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _wait_for_key(store: Any, key: str, timeout: timedelta) -> None:
    """Waits until another rank sets a key. The store's own wait would hold back a Ctrl-C until its time-out.

    A time-out of the store's wait also writes warnings, so this function asks the store again and again.
    """
    began = time.monotonic()
    while not store.check([key]):
        waited_seconds = time.monotonic() - began
        if waited_seconds > timeout.total_seconds():
            raise dist.DistStoreError(
                f"another rank did not come within {timeout.total_seconds():g} s; look at the output of the other ranks"
            )
        time.sleep(min(max(_PAUSE_RATIO * waited_seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS))


def add_process_group(group: Any, store: Any, owner: Any = None) -> int:
    """Adds a group and returns its number. `store` belongs to the group; the first one is the rendezvous store.

    `owner` is the process group of torch.distributed that uses the group, if there is one.
    """
    if not _groups:
        _stores.append(store)
        _own_rank.append(int(group.rank()))
    _groups.append(group)
    _device_stores.append(dist.PrefixStore("neuron-device", store))
    _sizes.append(int(group.size()))
    number = len(_groups) - 1
    if owner is not None:
        _owners[number] = owner
    return number


@atexit.register
def _destroy_groups() -> None:
    """Drops the groups before the interpreter ends.

    A group's threads may hold tensors. A thread that releases a tensor after the interpreter has ended aborts the
    process. A group that passed its deadline stays (see Deadline.wait). Drops a Ctrl-C that comes meanwhile, because
    the script has ended.
    """
    with dropping_signals():
        _groups.clear()
        _sizes.clear()


def publish_device(number: int, device_index: int) -> None:
    """Tells the other ranks of a group on which device of its host this rank is. Only the first call has an effect."""
    if number not in _published and _sizes[number] > 1:
        _published.add(number)
        _device_stores[number].set(str(_groups[number].rank()), f"{_host_name()} {device_index}")


def devices_of_peers(number: int, rank: int | None = None) -> frozenset[int]:
    """Returns the devices of the other ranks of a group on this host, or of one rank, as far as they are published."""
    store, own = _device_stores[number], _groups[number].rank()
    ranks = [rank] if rank is not None else [other for other in range(_sizes[number]) if other != own]
    published = [str(store.get(key), "utf-8") for key in map(str, ranks) if store.check([key])]
    places = [place.rpartition(" ") for place in published]
    return frozenset(int(index) for host, _, index in places if host == _host_name())


def _host_name() -> str:
    """Returns a name of the host, with the socket of its daemon: one computer may simulate several hosts."""
    return f"{platform.node()} {os.environ.get('NEURONTOOLS_SOCKET', '')}"


def rendezvous_store() -> Any:
    """Returns the rendezvous store. None if the group of all ranks does not exist yet, or if the job has one rank."""
    return _stores[0] if _stores and _sizes and _sizes[0] > 1 else None


def has_joined_world() -> bool:
    return bool(_sizes) or recorded_rank() is not None


def own_rank() -> int | None:
    """Returns the rank of this process in the job; None before the group of all ranks exists."""
    recorded = recorded_rank()
    if recorded is not None:
        return recorded.rank
    return _own_rank[0] if _sizes else None


def group_of(number: int) -> Any:
    return _groups[number]


def ranks_of_group(number: int) -> tuple[int, ...]:
    """Returns the ranks of the job in a group, in the order of the group; () if they are unknown."""
    if number == 0:
        return tuple(range(_sizes[0])) if _sizes else ()
    members = next((ranks for ranks, each in _subgroups.items() if each == number), None)
    if members is not None:
        return members
    owner = _owners.get(number)
    try:
        return () if owner is None else tuple(dist.get_process_group_ranks(owner))
    except KeyError:  # the script has destroyed the group
        return ()


def ensure_world() -> int:
    """Returns the number of ranks. If the script has no process group, creates a gloo group of torchrun's ranks."""
    recorded = recorded_rank()
    if recorded is not None:
        return recorded.size
    if _sizes:
        return _sizes[0]
    size = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if size > 1:
        found, rank, size = next(dist.rendezvous("env://"))
        store = prefix_store_of_start(found)
        add_process_group(build_gloo(dist.PrefixStore("neuron-world", store), rank, size, _TIMEOUT), store)
    return _sizes[0] if _sizes else 1


def join_subgroup(groups: Sequence[Sequence[int]] | None) -> int:
    """Returns the number of the group that contains this rank. The first call creates the group.

    `groups` lists the ranks of each group, as in torch_xla: `groups=[[0, 1], [2, 3]]`. Without groups, returns 0, the
    group of all ranks. Raises ValueError if no group has this rank.
    """
    recorded = recorded_rank()
    if recorded is not None:
        return group_number(groups, recorded.size)
    if ensure_world() == 1 or not groups:
        return 0
    rank = _own_rank[0]
    members = next((tuple(g) for g in groups if rank in g), None)
    if members is None:
        raise ValueError(f"groups={list(groups)}: rank {rank} is in none of them")
    if len(members) == _sizes[0]:
        return 0
    if members not in _subgroups:
        prefixed = dist.PrefixStore(f"neuron-{members}", _stores[0])
        gloo = build_gloo(prefixed, members.index(rank), len(members), _TIMEOUT)
        _subgroups[members] = add_process_group(gloo, prefixed)
    return _subgroups[members]


def rank_in_group(rank: int, groups: Sequence[Sequence[int]] | None) -> int:
    """Converts a rank of the job to the rank within its group. `groups` lists the ranks by group: [[0, 1], [2, 3]]."""
    members = next((tuple(g) for g in groups or () if rank in g), None)
    return rank if members is None or len(members) == ensure_world() else members.index(rank)


def group_size(group: int) -> int:
    if group < 0:
        return size_of_group(group)
    return _sizes[group] if _sizes else 1


_sent: dict[int, int] = {}
_received: dict[int, int] = {}
_here: dict[str, bytes] = {}


def send_on_channel(channel: int, value: Tensor) -> None:
    """Sends a CPU tensor through a channel. Never waits for the receiver."""
    number = _sent[channel] = _sent.get(channel, 0) + 1
    payload = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    store = rendezvous_store()
    if store is None:
        _here[_channel_key(channel, number)] = payload
    else:
        store.set(_channel_key(channel, number), payload)


def receive_on_channel(channel: int, like: Tensor) -> Tensor:
    """Waits for the next tensor of a channel and returns it as a CPU tensor with the shape and dtype of `like`.

    Raises RuntimeError if the job has one rank, which sent nothing. Raises ValueError if the tensor has another size in
    bytes than `like`.
    """
    number = _received[channel] = _received.get(channel, 0) + 1
    key = _channel_key(channel, number)
    store: Any = rendezvous_store()
    if store is not None:
        entry = step_clock.open(COLLECTIVE, time.perf_counter())
        try:
            _wait_for_key(store, key, _TIMEOUT)
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


_MEASURE_EVERY = 61  # one of 61 collectives is measured; a prime, so all of a step get their turn
_LATEST = 5  # number of latest measurements whose median is used: it ignores short load peaks
_PAIRWISE = frozenset({"send", "receive", "permute"})  # collectives of only some ranks of a group

CollectiveKey = tuple[str, int, int]
"""(kind, group number, bit length of the size in bytes)"""


class CollectiveWait:
    """Measures how long collectives wait for other ranks.

    The ranks must run the same collectives in the same order, because each rank decides by its own count when to
    synchronize.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}
        self._measured_seconds: dict[CollectiveKey, deque[float]] = {}
        self._work_seconds: dict[CollectiveKey, float] = {}

    def run_measured(self, kind: str, number: int, group: Any, nbytes: int, work: Callable[[], None]) -> float:
        """Runs one collective. Returns the seconds that it waited for other ranks. Exceptions of `work` propagate."""
        count = self._counts.get((kind, number), 0)
        self._counts[kind, number] = count + 1
        began = time.perf_counter()
        is_measured = kind not in _PAIRWISE and (not count % _MEASURE_EVERY or not count & (count - 1))
        if is_measured:
            deadline.wait(group, group.allreduce([torch.zeros(1)]))
        work_began = time.perf_counter()
        work()
        ended = time.perf_counter()
        key = (kind, number, nbytes.bit_length())
        work_seconds = self._work_seconds.get(key)
        seconds = ended - work_began
        if is_measured:
            latest = self._measured_seconds.setdefault(key, deque(maxlen=_LATEST))
            latest.append(seconds)
            self._work_seconds[key] = sorted(latest)[len(latest) // 2]
            return work_began - began
        if kind in _PAIRWISE:
            # The start of the peer is unknown, so the shortest time so far counts as the time without waiting.
            work_seconds = self._work_seconds[key] = seconds if work_seconds is None else min(work_seconds, seconds)
        elif work_seconds is None:
            work_seconds = self._estimate_seconds(kind, number, nbytes)
        return max(0.0, seconds - work_seconds)

    def _estimate_seconds(self, kind: str, number: int, nbytes: int) -> float:
        """Estimates the seconds of a collective without waiting, from the measured collective of the nearest size.

        Fewer bytes take the same time as measured, more bytes proportionally longer.
        """
        bits = nbytes.bit_length()
        sizes = [key[2] for key in self._work_seconds if key[:2] == (kind, number)]
        if not sizes:
            return inf  # no collective of this kind was measured, because the first one failed
        nearest = min(sizes, key=lambda size: abs(size - bits))
        return self._work_seconds[kind, number, nearest] * 2.0 ** max(0, bits - nearest)


collective_wait = CollectiveWait()
