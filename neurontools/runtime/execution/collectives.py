"""The `xla` process group: collectives of device tensors, recorded into the graph and carried out by gloo.

A collective is one operator of the graph, `neuron::collective`. It runs when its graph is executed, so all ranks have
to execute graphs with the same collectives in the same order, as on the hardware.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from neurontools.nrt.status import NrtStatus
from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.execution.deadline import deadline
from neurontools.runtime.execution.failure import ExecutionFailed
from neurontools.runtime.operators.operator import Operator, operators
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.core import Core, Tensor
from neurontools.runtime.tensors.device import device

_REDUCE_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "mul": dist.ReduceOp.PRODUCT,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}
_kept: list[Any] = []
_groups: list[Any] = []
_stores: list[Any] = []
_subgroups: dict[tuple[int, ...], int] = {}
_TIMEOUT = timedelta(minutes=30)


class CollectiveFailed(ExecutionFailed):
    """A collective did not complete: a peer died, or the ranks did not do the same things in the same order."""

    def __init__(self, kind: str, cause: BaseException) -> None:
        super().__init__(
            NrtStatus.HW_ERR_COLLECTIVES,
            f"{kind} did not complete ({(str(cause) or type(cause).__name__).splitlines()[0]}); another rank ended "
            "or executed other collectives: look at the output of the other ranks",
        )


def install() -> None:
    """Makes `neuron::collective` and the backend known to torch; once a process."""
    if _kept:
        return
    library = torch.library.Library("neuron", "FRAGMENT")
    library.define(
        "collective(Tensor(a!)[] outputs, Tensor[] inputs, str kind, str reduction, int root, int group) -> ()"
    )
    library.impl("collective", _collective, "CPU")
    operator = Operator(torch.ops.neuron.collective.default, call=_collective, effect=True)
    operators.add(operator)
    library.impl("collective", recording_kernel(operator), "PrivateUse1")
    library.impl("collective", lambda *_: None, "Meta")
    _kept.append(library)
    # CPU tensors too: gloo can, and DistributedDataParallel keeps its map of used parameters on the host.
    for name in dict.fromkeys((device.name, "xla")):
        dist.Backend.register_backend(name, _create, devices=[device.name, "cpu"])


def world() -> Any:
    """The gloo group of all ranks, made by init_process_group; None before it."""
    return _groups[0] if _groups else None


def _collective(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], kind: str, reduction: str, root: int, group: int
) -> None:
    """Carries out a collective on CPU tensors."""
    started = time.perf_counter()
    nbytes = sum(t.nbytes for t in (inputs or outputs))
    try:
        _KINDS[kind](_groups[group], list(outputs), list(inputs), reduction, root)
    except ExecutionFailed:
        raise
    except RuntimeError as error:
        raise CollectiveFailed(kind, error) from error
    seconds = time.perf_counter() - started
    with buffers.lock:
        statistics = device.current.statistics
        statistics.collectives_total += 1
        statistics.collective_seconds += seconds
        statistics.collective_bytes += nbytes
        metrics.time("CollectiveTime", seconds)
        metrics.sample("CollectiveData", nbytes)
        metrics.count(f"Collective:{kind}")


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
}
_NAMES = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "mul", "BAND": "and", "BOR": "or"}


def reduction_name(op: Any) -> str:
    """The name of a torch.distributed.ReduceOp; NotImplementedError for one that the device has not."""
    name = next((text for known, text in _NAMES.items() if op == getattr(dist.ReduceOp, known)), None)
    if name is None:
        raise NotImplementedError(f"reduction {op} is not supported on {device.name}; use one of {', '.join(_NAMES)}")
    return name


def collective(
    kind: str,
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    reduction: str = "sum",
    root: int = 0,
    group: int = 0,
) -> None:
    """Records a collective of device tensors, or carries it out for CPU tensors."""
    if not _groups:
        return
    tensors = [*outputs, *inputs]
    with torch.no_grad():
        if any(not t.is_cpu for t in tensors):
            torch.ops.neuron.collective(list(outputs), list(inputs), kind, reduction, root, group)
        else:
            device.flush_all("Collective")  # what was recorded before it must happen before it
            _collective(outputs, inputs, kind, reduction, root, group)


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    core: Any = torch._C
    return core._distributed_c10d._create_work_from_future(future)


_ProcessGroup: Any = dist.ProcessGroup  # its stubs forbid what its own Python subclasses do


class NeuronProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives are recorded; what it returns is complete as soon as the graph has run."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("neuron", store), rank, size, timeout)
        if not _groups:
            _stores.append(store)
        self.number = len(_groups)
        _groups.append(self.gloo)

    def _run(
        self, kind: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str = "sum", root: int = 0
    ) -> Any:
        collective(kind, outputs, inputs, reduction, root, self.number)
        return _done(list(outputs))

    def getBackendName(self) -> str:  # noqa: N802
        """The name of the backend."""
        return device.name

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Sums, averages, … tensors over the ranks in place."""
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        return self._run("all_reduce", tensors if isinstance(tensors, list) else [tensors], [], reduction_name(op))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Like allreduce, for several tensors."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Like allreduce; the other ranks get the result too."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Sends a tensor of one rank to all."""
        return self._run("broadcast", tensors, [], root=0 if opts is None else opts.rootRank)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Collects the tensors of all ranks."""
        del opts
        for listed, value in zip(outputs, inputs, strict=True):
            self._run("all_gather", listed, [value])
        return _done(outputs)

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        """Collects the tensors of all ranks into one."""
        del opts
        parts = list(output.view(self.size(), *value.shape).unbind(0))
        self._run("all_gather", parts, [value])
        return _done([output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Like all_gather_single, for several tensors."""
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value, opts)
        return _done(outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        """Reduces lists of tensors over the ranks; each rank keeps its part."""
        op = reduction_name(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        for output, listed in zip(outputs, inputs, strict=True):
            self._run("reduce_scatter", [output], listed, op)
        return _done(outputs)

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        """Reduces a tensor over the ranks; each rank keeps its part."""
        op = reduction_name(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        parts = list(value.view(self.size(), *output.shape).unbind(0))
        self._run("reduce_scatter", [output], parts, op)
        return _done([output])

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Like reduce_scatter_single, for several tensors."""
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _done(outputs)

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Sends a tensor to each rank and gets one of each."""
        del opts
        return self._run("all_to_all", outputs, inputs)

    def all_to_all_single(
        self, output: Tensor, value: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        """Sends a part of a tensor to each rank."""
        del opts
        size = self.size()
        outputs = output.split(list(output_sizes)) if output_sizes else output.chunk(size)
        inputs = value.split(list(input_sizes)) if input_sizes else value.chunk(size)
        self._run("all_to_all", list(outputs), list(inputs))
        return _done([output])

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Collects the tensors of all ranks on one."""
        self._run("gather", outputs[0] if outputs else [], inputs, root=opts.rootRank)
        return _done(outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        """Gives each rank one of the tensors of one rank."""
        return self._run("scatter", outputs, inputs[0] if inputs else [], root=opts.rootRank)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        """Sends a tensor to a rank."""
        del tag
        self._run("send", [], tensors, root=destination)
        self._flush(tensors)
        return _done(tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        """Gets a tensor of a rank."""
        del tag
        self._run("receive", tensors, [], root=source)
        self._flush(tensors)
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        """Executes what is pending and waits for all ranks."""
        del opts
        device.flush_all("Barrier")
        try:
            self.gloo.barrier().wait()
        except RuntimeError as error:
            raise CollectiveFailed("barrier", error) from error
        return _done([])

    def _flush(self, tensors: list[Tensor]) -> None:
        cores: list[Core] = [buffers.of(t).core for t in tensors if not t.is_cpu]
        for core in cores:
            device.flush(core, "PointToPoint")


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> NeuronProcessGroup:
    return NeuronProcessGroup(store, rank, size, timeout)


def ensure_world() -> int:
    """The number of ranks; joins the gloo group of torchrun's ranks when the script made no process group itself."""
    install()
    size = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if size > 1 and not _groups:
        store, rank, size = next(dist.rendezvous("env://"))
        _groups.append(dist.ProcessGroupGloo(dist.PrefixStore("neuron-world", store), rank, size, _TIMEOUT))
        _stores.append(store)
    return _groups[0].size() if _groups else 1


def subgroup(groups: Sequence[Sequence[int]] | None) -> int:
    """The number of the group that this rank is in, of groups as torch_xla's `groups=[[0, 1], [2, 3]]` has them."""
    if not groups or ensure_world() == 1:
        return 0
    rank = _groups[0].rank()
    members = next((tuple(g) for g in groups if rank in g), None)
    if members is None:
        raise ValueError(f"groups={list(groups)}: rank {rank} is in none of them")
    if len(members) == _groups[0].size():
        return 0
    if members not in _subgroups:
        store = _stores[0] if _stores else next(dist.rendezvous("env://"))[0]
        made = dist.ProcessGroupGloo(
            dist.PrefixStore(f"neuron-{members}", store), members.index(rank), len(members), _TIMEOUT
        )
        _subgroups[members] = len(_groups)
        _groups.append(made)
    return _subgroups[members]


def group_size(group: int) -> int:
    """How many ranks a group has; 1 without any group."""
    return int(_groups[group].size()) if _groups else 1
