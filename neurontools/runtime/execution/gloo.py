"""Carries out collectives of CPU tensors by gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution import ranks
from neurontools.runtime.execution.collective_wait import waits
from neurontools.runtime.execution.deadline import deadline
from neurontools.runtime.execution.failure import ExecutionFailed
from neurontools.runtime.tensors.core import Tensor

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


def carry_out(
    kind: str, number: int, nbytes: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str, root: int
) -> float:
    """One collective of the group with this number, complete on return; how long it waited for other ranks, in seconds.

    CollectiveFailed, or ExecutionFailed after the deadline.
    """
    group = ranks.group_of(number)
    try:
        return waits.carry_out(
            kind,
            number,
            group,
            nbytes,
            lambda: _KINDS[kind](group, list(outputs), list(inputs), reduction, root),
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


_KINDS: dict[str, Callable[[Any, list[Tensor], list[Tensor], str, int], None]] = {
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
