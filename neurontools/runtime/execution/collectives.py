"""Collectives of device tensors, recorded into the graph and carried out when it is executed.

A collective is one operator of the graph, `neuron::collective`. It runs when its graph is executed, so all ranks have
to execute graphs with the same collectives in the same order, as on the hardware.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.counting.step_clock import COLLECTIVE, step_clock
from neurontools.runtime.execution import ranks
from neurontools.runtime.execution.collective_faults import collective_faults
from neurontools.runtime.execution.gloo import carry_out
from neurontools.runtime.operators.operator import DeviceOperator, operators
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.core import Tensor
from neurontools.runtime.tensors.device import device

_kept: list[Any] = []
_NAMES = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "mul", "BAND": "and", "BOR": "or"}


def install() -> None:
    """Makes `neuron::collective` known to torch; once is enough, more does no harm."""
    if _kept:
        return
    library = torch.library.Library("neuron", "FRAGMENT")
    library.define(
        "collective(Tensor(a!)[] outputs, Tensor[] inputs, str kind, str reduction, int root, int group) -> ()"
    )
    library.impl("collective", _collective, "CPU")
    operator = DeviceOperator(torch.ops.neuron.collective.default, call=_collective, effect=True)
    operators.add(operator)
    library.impl("collective", recording_kernel(operator), "PrivateUse1")
    library.impl("collective", lambda *_: None, "Meta")
    _kept.append(library)


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
    if not ranks.have_met():
        return
    tensors = [*outputs, *inputs]
    with torch.no_grad():
        if any(not t.is_cpu for t in tensors):
            torch.ops.neuron.collective(list(outputs), list(inputs), kind, reduction, root, group)
        else:
            device.flush_all("Collective")  # what was recorded before it must happen before it
            begun_ns = time.perf_counter_ns()
            _collective(outputs, inputs, kind, reduction, root, group)
            if ring.is_on:
                nbytes = sum(t.nbytes for t in (inputs or outputs))
                ring.record_collective(f"neuron::{kind}", device.current.global_index, begun_ns, nbytes)


def _collective(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], kind: str, reduction: str, root: int, group: int
) -> None:
    """Carries out a collective on CPU tensors."""
    started = time.perf_counter()
    for meet in collective_faults.meets:
        meet()
    nbytes = sum(t.nbytes for t in (inputs or outputs))
    step_clock.latest_collective = kind
    entry = step_clock.open(COLLECTIVE, started)
    wait_seconds = None
    try:
        wait_seconds = carry_out(kind, group, nbytes, outputs, inputs, reduction, root)
    finally:
        ended = time.perf_counter()
        step_clock.close_collective(entry, ended, ended - started if wait_seconds is None else wait_seconds)
    seconds = ended - started
    with buffers.lock:
        statistics = device.current.statistics
        statistics.collectives_total += 1
        statistics.collective_seconds += seconds
        statistics.collective_bytes += nbytes
        metrics.add_duration("CollectiveTime", seconds)
        metrics.add_sample("CollectiveData", nbytes)
        metrics.increment(f"Collective:{kind}")
