"""The workload of nccom-test on one rank. It uses torch only through the device, so it runs with any Neuron stack.

Usage: `nccom_workload.py PLAN`. PLAN is JSON: the rank, the operation, the data type and the numbers of elements.
Rank 0 writes a line of JSON with the median seconds for each of these numbers. Each rank ends with a line that has the
number of wrong elements, which is 0 without a check.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm

from neurontools.diagnose.workload import join_ranks, write_line

_TYPES = {
    "uint8": "uint8",
    "int8": "int8",
    "uint16": "uint16",
    "int16": "int16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "uint32": "uint32",
    "int32": "int32",
    "fp32": "float32",
}
_VALUES = 251  # the checked data are small whole numbers, so sums are exact in any order


class Rank(NamedTuple):
    """A rank of the benchmark."""

    rank: int
    size: int
    device: Any


def main(plan: dict[str, Any]) -> None:
    """Measures the operation for each number of elements, and checks all results if the plan says so."""
    rank = Rank(plan["rank"], plan["size"], join_ranks(plan))
    dtype = getattr(torch, _TYPES[plan["datatype"]])
    run, expect = _OPERATIONS[plan["operation"]]
    wrong = 0
    for count in plan["counts"]:
        data = _data(count, rank.rank).to(dtype) if plan["checks"] else torch.zeros(count, dtype=dtype)
        expected = expect(rank, count) if plan["checks"] else None
        value = data.to(rank.device)
        seconds = []
        for number in range(plan["warmup_iterations"] + plan["iterations"]):
            xm.mark_step()
            xm.wait_device_ops()
            began = time.perf_counter()
            output = run(rank, value)
            xm.mark_step()
            xm.wait_device_ops()
            if number >= plan["warmup_iterations"]:
                seconds.append(time.perf_counter() - began)
            if expected is not None:
                wrong += int((output.cpu().double() != expected).sum())
                value = data.to(rank.device)  # all-reduce has overwritten it
        if rank.rank == 0:
            write_line(seconds=median(seconds))
    write_line(wrong=wrong)


def _data(count: int, rank: int) -> torch.Tensor:
    return ((torch.arange(count) * 7 + rank * 31) % _VALUES).double()


def _part(rank: Rank, value: torch.Tensor, index: int) -> torch.Tensor:
    return value.chunk(rank.size)[index]


def _all_reduce(_rank: Rank, value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    return value


def _all_gather(rank: Rank, value: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(value)
    dist.all_gather_into_tensor(output, _part(rank, value, rank.rank).contiguous())
    return output


def _reduce_scatter(rank: Rank, value: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(_part(rank, value, rank.rank))
    dist.reduce_scatter_tensor(output, value)
    return output


def _send_and_receive(rank: Rank, value: torch.Tensor) -> torch.Tensor:
    """Sends to the next rank and receives from the one before. Every second rank sends first, so none waits forever."""
    output = torch.empty_like(value)
    following, before = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    if rank.rank % 2:
        dist.recv(output, before)
        dist.send(value, following)
    else:
        dist.send(value, following)
        dist.recv(output, before)
    return output


def _all_to_all(_rank: Rank, value: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(value)
    dist.all_to_all_single(output, value)
    return output


def _sum(rank: Rank, count: int) -> torch.Tensor:
    return torch.stack([_data(count, each) for each in range(rank.size)]).sum(0)


_Run = Callable[[Rank, torch.Tensor], torch.Tensor]
_Expect = Callable[[Rank, int], torch.Tensor]
_OPERATIONS: dict[str, tuple[_Run, _Expect]] = {
    "all_reduce": (_all_reduce, _sum),
    "all_gather": (
        _all_gather,
        lambda rank, count: torch.cat([_part(rank, _data(count, each), each) for each in range(rank.size)]),
    ),
    "reduce_scatter": (_reduce_scatter, lambda rank, count: _part(rank, _sum(rank, count), rank.rank)),
    "sendrecv": (_send_and_receive, lambda rank, count: _data(count, (rank.rank - 1) % rank.size)),
    "alltoall": (
        _all_to_all,
        lambda rank, count: torch.cat([_part(rank, _data(count, each), rank.rank) for each in range(rank.size)]),
    ),
}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
