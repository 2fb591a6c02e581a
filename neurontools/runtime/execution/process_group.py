"""The process group of the device: what init_process_group makes, and torch's collectives on its tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from neurontools.runtime.counting.step_clock import COLLECTIVE, step_clock
from neurontools.runtime.execution import collectives, ranks
from neurontools.runtime.execution.collectives import collective, reduction_name
from neurontools.runtime.execution.gloo import CollectiveFailed
from neurontools.runtime.tensors.core import Core, Tensor
from neurontools.runtime.tensors.device import device

_registered: set[str] = set()


def install() -> None:
    """Makes the backend and its operator known to torch; once is enough, more does no harm."""
    collectives.install()
    for name in dict.fromkeys((device.name, "xla")):
        if name not in _registered:
            _registered.add(name)
            # CPU tensors too: gloo can, and DistributedDataParallel keeps its map of used parameters on the host.
            dist.Backend.register_backend(name, _create, devices=[device.name, "cpu"])


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
        store = ranks.of_this_start(store)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("neuron", store), rank, size, timeout)
        self._name = ""
        self.number = ranks.add(gloo, store)  # which alone keeps it, and lets go of it at the end

    def _run(
        self, kind: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reduction: str = "sum", root: int = 0
    ) -> Any:
        collective(kind, outputs, inputs, reduction, root, self.number)
        return _done(list(outputs))

    def _set_group_name(self, name: str) -> None:
        """What torch calls the group; its own place for it is in a backend made in C++."""
        self._name = name

    @property
    def group_name(self) -> str:
        """What torch calls the group, and finds it by."""
        return self._name

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
        step_clock.latest_collective = "barrier"
        entry = step_clock.open(COLLECTIVE, time.perf_counter())
        try:
            ranks.group_of(self.number).barrier().wait()
        except RuntimeError as error:
            raise CollectiveFailed("barrier", error) from error
        finally:
            step_clock.close(entry, time.perf_counter())
        return _done([])

    def _flush(self, tensors: list[Tensor]) -> None:
        cores: list[Core] = [device.core_of(t) for t in tensors if not t.is_cpu]
        for core in cores:
            device.flush(core, "PointToPoint")


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> NeuronProcessGroup:
    return NeuronProcessGroup(store, rank, size, timeout)
