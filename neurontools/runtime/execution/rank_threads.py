"""Ranks of one process: several cores execute a model together, each in a thread of its own.

While the graph of a rank is recorded, `recorded_rank` has its number. The graph has group numbers below 0, which depend
on no process and no rank, so that a saved graph is valid in any process. During an execution, a RankExchange passes the
tensors of collectives between the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neurontools.runtime.tensors.buffers import Core

_SIZE_BITS = 16
_CLOCK_SLACK_SECONDS = 0.01
_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.Tensor.add_,
    "avg": torch.Tensor.add_,
    "mul": torch.Tensor.mul_,
    "min": lambda one, other: one.copy_(torch.minimum(one, other)),
    "max": lambda one, other: one.copy_(torch.maximum(one, other)),
    "and": torch.Tensor.bitwise_and_,
    "or": torch.Tensor.bitwise_or_,
}


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """The rank as which this process records a graph, and the number of ranks."""

    rank: int
    size: int


_recorded: list[RecordedRank] = []


def recorded_rank() -> RecordedRank | None:
    """Returns the rank of the innermost `recording_as` block; None outside of such a block."""
    return _recorded[-1] if _recorded else None


@contextmanager
def recording_as(rank: int, size: int) -> Iterator[None]:
    """Makes this process rank `rank` of `size` ranks for torch_xla during the block. No collective waits for a peer."""
    if not 0 <= rank < size < 1 << _SIZE_BITS:
        raise ValueError(f"rank {rank} of {size} ranks: ranks count from 0 to the number of ranks less 1")
    _recorded.append(RecordedRank(rank, size))
    try:
        yield
    finally:
        _recorded.pop()


def group_number(groups: Sequence[Sequence[int]] | None, size: int) -> int:
    """Returns a number below 0 for groups of ranks, which `members_of` decodes. No groups mean one group of all ranks.

    All groups need one size, and one distance between neighbours: [[0, 2], [1, 3]]. Raises ValueError for others.
    """
    members = sorted(sorted(group) for group in groups) if groups else [[*range(size)]]
    length, stride = len(members[0]), members[0][1] - members[0][0] if len(members[0]) > 1 else 1
    number = -((stride << _SIZE_BITS) | length)
    if any([*members_of(number, group[0])] != group for group in members):
        raise ValueError(
            f"groups={[*map(list, members)]}: a traced model needs groups of one size, with one distance between the "
            "ranks of a group, such as [[0, 1], [2, 3]] or [[0, 2], [1, 3]]"
        )
    return number


def size_of_group(number: int) -> int:
    """Returns the number of ranks in each of the groups with this number."""
    return -number & (1 << _SIZE_BITS) - 1


def members_of(number: int, rank: int) -> range:
    """Returns the ranks of the group that contains this rank, in order."""
    size, stride = size_of_group(number), -number >> _SIZE_BITS
    first = rank - (rank // stride) % size * stride
    return range(first, first + size * stride, stride)


@dataclass(slots=True)
class _Meeting:
    """One collective of one group: the tensors of the ranks that have arrived."""

    kind: str
    tensors: dict[int, tuple[Sequence[Tensor], Sequence[Tensor]]] = field(default_factory=dict)
    is_done: bool = False


class RankExchange:
    """The collectives of one execution on several cores: rank N runs on `cores[N]`, in a thread.

    The last rank that arrives computes the results of all ranks, in the order of the ranks. So results do not depend on
    the order of the threads.
    """

    def __init__(self, cores: Sequence[Core], queued_at_seconds: float) -> None:
        self.cores = cores
        self.queued_at_seconds = queued_at_seconds
        self.first_error: BaseException | None = None
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._counts: dict[tuple[int, int], int] = {}
        self._meetings: dict[tuple[range, int], _Meeting] = {}

    def fail(self, error: BaseException) -> None:
        """Keeps the first error of the ranks as `first_error`."""
        with self._changed:
            self.first_error = self.first_error or error

    @contextmanager
    def member(self, rank: int) -> Iterator[None]:
        """Makes this thread a rank of the execution. At the end of the block, ranks that wait for it get an error."""
        before, _thread.membership = _thread.membership, (self, rank)
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            _thread.membership = before
            with self._changed:
                self._ended.add(rank)
                self._changed.notify_all()

    def run(
        self,
        rank: int,
        kind: str,
        number: int,
        tensors: tuple[Sequence[Tensor], Sequence[Tensor]],
        reduction: str,
        root: int,
        timeout_seconds: float | None,
    ) -> None:
        """Runs one collective of outputs and inputs. Raises RuntimeError if a rank of the group has ended.

        Returns after `timeout_seconds` without a result: the caller checks its deadline.
        """
        members = members_of(number, rank)
        with self._changed:
            count = self._counts[number, rank] = self._counts.get((number, rank), 0) + 1
            meeting = self._meetings.setdefault((members, count), _Meeting(kind))
            if meeting.kind != kind:
                raise RuntimeError(f"another rank executed {meeting.kind}")
            meeting.tensors[rank] = tensors
            if len(meeting.tensors) == len(members):
                _COMPUTE[kind]([meeting.tensors[each] for each in members], reduction, root)
                meeting.is_done = True
                del self._meetings[members, count]
                self._changed.notify_all()
                return

            def is_over() -> bool:
                return meeting.is_done or not self._ended.isdisjoint(members)

            wait_seconds = None if timeout_seconds is None else timeout_seconds + _CLOCK_SLACK_SECONDS
            if self._changed.wait_for(is_over, wait_seconds) and not meeting.is_done:
                raise RuntimeError("a rank of this model has ended")


class _Thread(threading.local):
    """The exchange and the rank of this thread, if it executes a rank."""

    membership: tuple[RankExchange, int] | None = None


_thread = _Thread()


def current_membership() -> tuple[RankExchange, int] | None:
    """Returns the exchange and the rank of this thread; None if it executes no rank."""
    return _thread.membership


_Tensors = Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]


def reduce_tensors(values: Sequence[Tensor], reduction: str) -> Tensor:
    """Returns the reduction of tensors, in their order."""
    result = values[0].clone()
    for value in values[1:]:
        _REDUCE[reduction](result, value)
    return result.div_(len(values)) if reduction == "avg" else result


def _all_reduce(ranks: _Tensors, reduction: str, _root: int) -> None:
    for same in zip(*(outputs for outputs, _ in ranks), strict=True):
        result = reduce_tensors(same, reduction)
        for output in same:
            output.copy_(result)


def _broadcast(ranks: _Tensors, _reduction: str, root: int) -> None:
    for same in zip(*(outputs for outputs, _ in ranks), strict=True):
        for output in same:
            if output is not same[root]:
                output.copy_(same[root])


def _all_gather(ranks: _Tensors, _reduction: str, _root: int) -> None:
    for outputs, _ in ranks:
        for output, (_, inputs) in zip(outputs, ranks, strict=True):
            output.copy_(inputs[0])


def _reduce_scatter(ranks: _Tensors, reduction: str, _root: int) -> None:
    for position, (outputs, _) in enumerate(ranks):
        outputs[0].copy_(reduce_tensors([inputs[position] for _, inputs in ranks], reduction))


def _all_to_all(ranks: _Tensors, _reduction: str, _root: int) -> None:
    for position, (outputs, _) in enumerate(ranks):
        for output, (_, inputs) in zip(outputs, ranks, strict=True):
            output.copy_(inputs[position])


def _permute(ranks: _Tensors, routes: str, _root: int) -> None:
    for route in routes.split():
        source, target = map(int, route.split(">"))
        ranks[target][0][0].copy_(ranks[source][1][0])


_COMPUTE: dict[str, Callable[[_Tensors, str, int], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
}


def run_alone(number: int, kind: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str) -> None:
    """Runs a collective as if all ranks had the tensors of this one. A recording needs only shapes and types."""
    if kind == "permute":
        outputs[0].copy_(inputs[0])
    elif kind in _COMPUTE:
        copies: Any = [([each.clone() for each in outputs], inputs) for _ in range(size_of_group(number) - 1)]
        _COMPUTE[kind]([(outputs, inputs), *copies], reduction, 0)
