"""Supports workers that xmp.spawn, notebook_launcher or Lightning start, and scripts without a launcher.

A process takes its NeuronCores at its start, so that the tools show the process. Before it starts workers by torch's
start_processes, it gives the cores back if no tensor is on a core. Each worker takes a core by its local rank at its
first use of the device. If the parent uses the device later, it takes cores again.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from neurontools.runtime.launch import device_registration, summary_files
from neurontools.runtime.torch_device.torch_patches import on_import


def patch_start_processes(environment: Mapping[str, str]) -> None:
    """Replaces torch's start_processes by a function that first gives this process's cores back. Call it once."""
    # The attribute torch.multiprocessing.spawn is a function, so the module of this name is taken from sys.modules.
    module: Any = sys.modules["torch.multiprocessing.spawn"]
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *rest: Any,
        **named: Any,
    ) -> Any:
        device_registration.release_cores()
        directory = environment.get(summary_files.DIRECTORY)
        if directory and start_method == "fork":
            fn = functools.partial(_run_forked_worker, directory, os.getpid(), fn)
        return original(fn, args, nprocs, join, daemon, start_method, *rest, **named)

    module.start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def _run_forked_worker(directory: str, parent_pid: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    """Runs the function of a forked worker and starts to write the worker's summary for neuron-run."""
    if os.getpid() != parent_pid:
        from neurontools.runtime.launch import summary

        summary.write_summaries_to(Path(directory))
    return fn(*arguments)


_STRATEGIES = (
    ("fabric", "xla", "XLAStrategy"),
    ("fabric", "xla_fsdp", "XLAFSDPStrategy"),
    ("pytorch", "xla", "XLAStrategy"),
)


def remove_lightning_launchers(environment: Mapping[str, str]) -> None:
    """Keeps Lightning's XLA strategies from starting workers in a process that torchrun or neuron-run started.

    By default, these strategies always start workers. A worker of torchrun would start another worker and wait for it.
    Without a launcher, the strategies train in this process, and `Fabric.launch()` needs no function. Call this once.
    """
    for part, module, strategy in _STRATEGIES:
        change = _without_launcher(strategy, environment)
        for package in (f"lightning.{part}", {"fabric": "lightning_fabric", "pytorch": "pytorch_lightning"}[part]):
            on_import(f"{package}.strategies.{module}", change)


def _without_launcher(strategy: str, environment: Mapping[str, str]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        launcher_strategy = getattr(module, strategy, None)
        if launcher_strategy is None:
            return
        configure = launcher_strategy._configure_launcher

        def configure_launcher(self: Any) -> None:
            if "RANK" not in environment:
                configure(self)

        launcher_strategy._configure_launcher = configure_launcher

    return change


_RANK_ARGUMENTS = frozenset({"store", "rank", "world_size"})


def default_to_single_rank() -> None:
    """Makes `init_process_group("xla")` create a group of one process if no launcher has set a rank.

    Also accepts torch_xla's `init_method="xla://"`, which reads the rank from the environment. Further calls of this
    function do nothing.
    """
    original = dist.init_process_group
    if hasattr(original, "__wrapped__") and original.__module__ == __name__:
        return

    def init_process_group(backend: Any = None, init_method: Any = None, *rest: Any, **named: Any) -> Any:
        if backend == "xla" and init_method in (None, "xla://"):
            init_method = None
            if "RANK" not in os.environ and not rest and not _RANK_ARGUMENTS & named.keys():
                named |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        return original(backend, init_method, *rest, **named)

    functools.update_wrapper(init_process_group, original)
    init_process_group.__module__ = __name__
    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group
