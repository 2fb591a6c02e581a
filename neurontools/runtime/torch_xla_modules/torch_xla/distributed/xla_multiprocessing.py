"""torch_xla.distributed.xla_multiprocessing: starts a process for each NeuronCore, without torchrun."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch.multiprocessing


def process_count() -> int:
    """Returns the number of the job's processes on this host; outside of a job, the number that `spawn` would start."""
    if "RANK" in os.environ:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    return int(os.environ.get("NEURONCORE_NUM_DEVICES", "1") or 1)


def spawn(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Calls fn(index, *args) in each of `nprocs` new processes. Each process takes its own core.

    The default of `nprocs` is NEURONCORE_NUM_DEVICES. Under torchrun, or if `nprocs` is 1, this function calls fn once,
    in this process. Raises RuntimeError if this process has tensors on the device.
    """
    count = process_count() if nprocs is None else nprocs
    if "RANK" in os.environ or count == 1:
        return fn(int(os.environ.get("LOCAL_RANK", "0") or 0), *args)
    from neurontools.runtime.launch import device_registration

    if not device_registration.release_cores():
        raise RuntimeError(
            f"xmp.spawn: this process has tensors on its NeuronCores, which {count} workers can't share with it; call "
            f"it before anything is put on the device, or use neuron-run --nproc-per-node {count}"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return torch.multiprocessing.start_processes(
        _worker, args=(fn, args, count, port), nprocs=count, join=join, daemon=daemon, start_method=start_method
    )


def _worker(index: int, fn: Callable[..., None], args: tuple[Any, ...], count: int, port: int) -> None:
    os.environ |= {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    from neurontools.runtime.launch.install import install_runtime

    install_runtime()
    fn(index, *args)


class MpModelWrapper:
    """Wraps a model that each process moves to its own device."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        return self._model.to(device)


class MpSerialExecutor:
    """Calls a function in one process of the job after the other."""

    def run(self, fn: Callable[[], Any]) -> Any:
        from ..core import xla_model as xm

        result = None
        for rank in range(xm.xrt_world_size()):
            if rank == xm.get_ordinal():
                result = fn()
            xm.rendezvous("MpSerialExecutor")
        return result
