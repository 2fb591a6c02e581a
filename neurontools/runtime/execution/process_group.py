"""The torch.distributed backend of the device. It records collectives as operators of graphs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.counting.steps import COLLECTIVE, step_clock
from neurontools.runtime.execution.gloo import (
    REDUCTIONS,
    CollectiveFailed,
    add_process_group,
    build_gloo,
    devices_of_peers,
    group_of,
    has_joined_world,
    prefix_store_of_start,
    publish_device,
    run_collective,
)
from neurontools.runtime.execution.injection import collective_hooks, transfer_hooks
from neurontools.runtime.execution.policy import ExecutionFailed, deadline
from neurontools.runtime.execution.rank_threads import current_membership, recorded_rank, run_alone
from neurontools.runtime.operators.operator import DeviceOperator, operators
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffers import Core, Tensor, buffers
from neurontools.runtime.tensors.device import device

_registered: set[str] = set()
_POINT_TO_POINT = ("send", "receive")


def register_backend() -> None:
    """Registers the torch.distributed backend and its collective operator with torch. Further calls do nothing."""
    register_collective_operators()
    for name in dict.fromkeys((device.name, "xla")):
        if name not in _registered:
            _registered.add(name)
            # For CPU tensors too, because DistributedDataParallel keeps its map of used parameters on the CPU.
            dist.Backend.register_backend(name, NeuronProcessGroup, devices=[device.name, "cpu"])


def _completed_work(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    core: Any = torch._C
    return core._distributed_c10d._create_work_from_future(future)


_ProcessGroup: Any = dist.ProcessGroup  # Any, because the type stubs of ProcessGroup reject subclasses


class NeuronProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group that records collectives into graphs.

    A collective returns a Work that is already complete, but its results exist only after the graph is executed.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        store = prefix_store_of_start(store)
        gloo = build_gloo(dist.PrefixStore("neuron", store), rank, size, timeout)
        self._name = ""
        self.number = add_process_group(gloo, store, self)  # gloo.py keeps the only reference to the group until exit

    def _run(
        self, kind: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str = "sum", root: int = 0
    ) -> Any:
        collective(kind, outputs, inputs, reduction, root, self.number)
        return _completed_work(list(outputs))

    def _set_group_name(self, name: str) -> None:
        """Stores the name that torch gives the group. torch's method needs a C++ backend, which this group lacks."""
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices of tensors that the group accepts; async_save of a distributed checkpoint requires the CPU."""
        return [torch.device(device.name), torch.device("cpu")]

    def getBackendName(self) -> str:  # noqa: N802
        return device.name

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        return self._run("all_reduce", tensors if isinstance(tensors, list) else [tensors], [], reduction_name(op))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduces a tensor. All ranks get the result as in allreduce, not only the root rank."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._run("broadcast", tensors, [], root=0 if opts is None else opts.rootRank)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        del opts
        for listed, value in zip(outputs, inputs, strict=True):
            self._run("all_gather", listed, [value])
        return _completed_work(outputs)

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        del opts
        parts = list(output.view(self.size(), *value.shape).unbind(0))
        self._run("all_gather", parts, [value])
        return _completed_work([output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value, opts)
        return _completed_work(outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        op = reduction_name(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        for output, listed in zip(outputs, inputs, strict=True):
            self._run("reduce_scatter", [output], listed, op)
        return _completed_work(outputs)

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        op = reduction_name(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        parts = list(value.view(self.size(), *output.shape).unbind(0))
        self._run("reduce_scatter", [output], parts, op)
        return _completed_work([output])

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _completed_work(outputs)

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        del opts
        return self._run("all_to_all", outputs, inputs)

    def all_to_all_single(
        self, output: Tensor, value: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        del opts
        size = self.size()
        outputs = output.split(list(output_sizes)) if output_sizes else output.chunk(size)
        inputs = value.split(list(input_sizes)) if input_sizes else value.chunk(size)
        self._run("all_to_all", list(outputs), list(inputs))
        return _completed_work([output])

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        self._run("gather", outputs[0] if outputs else [], inputs, root=opts.rootRank)
        return _completed_work(outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        return self._run("scatter", outputs, inputs[0] if inputs else [], root=opts.rootRank)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        """Sends a tensor to a rank and executes the graph. Ignores the tag."""
        del tag
        self._run("send", [], tensors, root=destination)
        self._flush(tensors)
        return _completed_work(tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        """Receives a tensor from a rank and executes the graph. Ignores the tag."""
        del tag
        self._run("receive", tensors, [], root=source)
        self._flush(tensors)
        return _completed_work(tensors)

    def barrier(self, opts: Any = None) -> Any:
        """Executes all pending graphs, then waits for all ranks. Raises CollectiveFailed if gloo fails."""
        del opts
        device.flush_all("Barrier")
        step_clock.latest_collective = "barrier"
        entry = step_clock.open(COLLECTIVE, time.perf_counter())
        try:
            group_of(self.number).barrier().wait()
        except RuntimeError as error:
            raise CollectiveFailed("barrier", error) from error
        finally:
            step_clock.close(entry, time.perf_counter())
        return _completed_work([])

    def _flush(self, tensors: list[Tensor]) -> None:
        cores: list[Core] = [device.core_of(t) for t in tensors if not t.is_cpu]
        for core in cores:
            device.flush(core, "PointToPoint")


_libraries: list[Any] = []


def register_collective_operators() -> None:
    """Registers the operator `neuron::collective` with torch. Only the first call has an effect."""
    if _libraries:
        return
    library = torch.library.Library("neuron", "FRAGMENT")
    library.define(
        "collective(Tensor(a!)[] outputs, Tensor[] inputs, str kind, str reduction, int root, int group) -> ()"
    )
    library.impl("collective", _run_in_graph, "CPU")
    operator = DeviceOperator(torch.ops.neuron.collective.default, call=_run_in_graph, effect=True)
    operators.add(operator)
    library.impl("collective", recording_kernel(operator), "PrivateUse1")
    library.impl("collective", lambda *_: None, "Meta")
    _libraries.append(library)


def reduction_name(op: Any) -> str:
    """Returns the name of a torch.distributed.ReduceOp. Raises NotImplementedError for an unsupported reduction."""
    name = next((text for member, text in REDUCTIONS.items() if op == getattr(dist.ReduceOp, member)), None)
    if name is None:
        known = ", ".join(REDUCTIONS)
        raise NotImplementedError(f"reduction {op} is not supported on {device.name}; use one of {known}")
    return name


def collective(
    kind: str,
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    reduction: str = "sum",
    root: int = 0,
    group: int = 0,
) -> None:
    """Records a collective of device tensors, or runs a collective of CPU tensors immediately.

    Does nothing before the group of all ranks exists.
    """
    if not has_joined_world():
        return
    tensors = [*outputs, *inputs]
    with torch.no_grad():
        if any(not t.is_cpu for t in tensors):
            torch.ops.neuron.collective(list(outputs), list(inputs), kind, reduction, root, group)
        else:
            device.flush_all("Collective")  # earlier recorded collectives must run first
            begun_ns = time.perf_counter_ns()
            _run_in_graph(outputs, inputs, kind, reduction, root, group)
            if ring.is_on:
                nbytes = sum(t.nbytes for t in (inputs or outputs))
                ring.record_collective(f"neuron::{kind}", device.current.global_index, begun_ns, nbytes)


def _run_in_graph(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], kind: str, reduction: str, root: int, group: int
) -> None:
    """Runs a collective on CPU tensors, and adds its time and bytes to the statistics."""
    if group < 0:
        _run_between_threads(outputs, inputs, kind, reduction, root, group)
        return
    started = time.perf_counter()
    for hook in collective_hooks:
        hook()
    nbytes = sum(t.nbytes for t in (inputs or outputs))
    step_clock.latest_collective = kind
    entry = step_clock.open(COLLECTIVE, started)
    wait_seconds = None
    publish_device(group, device.current.memory.device_index)
    try:
        wait_seconds = run_collective(kind, group, nbytes, outputs, inputs, reduction, root)
        for slow_down in transfer_hooks:
            slow_down(nbytes, partial(devices_of_peers, group, root if kind in _POINT_TO_POINT else None))
    finally:
        ended = time.perf_counter()
        step_clock.close_collective(entry, ended, ended - started if wait_seconds is None else wait_seconds)
    _count_collective(device.current, kind, ended - started, nbytes)


def _run_between_threads(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], kind: str, reduction: str, root: int, group: int
) -> None:
    """Runs a collective of a traced model on CPU tensors: its ranks are threads of this process."""
    membership = current_membership()
    if membership is None:
        if recorded_rank() is None:
            raise ExecutionFailed(
                NrtStatus.INVALID,
                "this is the model of one rank, which needs those of the other ranks; load their directory with "
                "neuronx_distributed.trace.parallel_model_load",
            )
        run_alone(group, kind, outputs, inputs, reduction)
        return
    exchange, rank = membership
    started = time.perf_counter()
    for hook in collective_hooks:
        hook()
    try:
        exchange.run(rank, kind, group, (outputs, inputs), reduction, root, deadline.left_seconds())
    except RuntimeError as error:
        raise CollectiveFailed(kind, error) from error
    deadline.check()
    nbytes = sum(t.nbytes for t in (inputs or outputs))
    _count_collective(exchange.cores[rank], kind, time.perf_counter() - started, nbytes)


def _count_collective(core: Core, kind: str, seconds: float, nbytes: int) -> None:
    with buffers.lock:
        statistics = core.statistics
        statistics.collectives_total += 1
        statistics.collective_seconds += seconds
        statistics.collective_bytes += nbytes
        metrics.add_duration("CollectiveTime", seconds)
        metrics.add_sample("CollectiveData", nbytes)
        metrics.increment(f"Collective:{kind}")
