"""Workers that torchrun did not start: xmp.spawn, notebook_launcher, Lightning, and a script without a launcher."""

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
from neurontools.runtime.torch_device.when_imported import when_imported


def patch_start_processes(environment: Mapping[str, str]) -> None:
    """Makes start_processes do so; once a process."""
    module: Any = sys.modules["torch.multiprocessing.spawn"]  # its name in the package is that of a function
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
        device_registration.give_back_cores()
        directory = environment.get(summary_files.DIRECTORY)
        if directory and start_method == "fork":
            fn = functools.partial(_run_forked_worker, directory, os.getpid(), fn)
        return original(fn, args, nprocs, join, daemon, start_method, *rest, **named)

    module.start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def _run_forked_worker(directory: str, parent_pid: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    """A worker that was forked keeps neuron-run informed as one that was spawned does."""
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
    """Changes the strategies when a script imports them; once a process."""
    for part, module, strategy in _STRATEGIES:
        change = _without_launcher(strategy, environment)
        for package in (f"lightning.{part}", {"fabric": "lightning_fabric", "pytorch": "pytorch_lightning"}[part]):
            when_imported(f"{package}.strategies.{module}", change)


def _without_launcher(strategy: str, environment: Mapping[str, str]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        made = getattr(module, strategy, None)
        if made is None:
            return
        configure = made._configure_launcher

        def configure_launcher(self: Any) -> None:
            if "RANK" not in environment:
                configure(self)

        made._configure_launcher = configure_launcher

    return change


_SAID_BY_THE_SCRIPT = frozenset({"store", "rank", "world_size"})


def default_to_single_rank() -> None:
    """Makes init_process_group do so; once is enough, more does no harm."""
    original = dist.init_process_group
    if hasattr(original, "__wrapped__") and original.__module__ == __name__:
        return

    def init_process_group(backend: Any = None, init_method: Any = None, *rest: Any, **named: Any) -> Any:
        if backend == "xla" and init_method in (None, "xla://"):
            init_method = None
            if "RANK" not in os.environ and not rest and not _SAID_BY_THE_SCRIPT & named.keys():
                named |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        return original(backend, init_method, *rest, **named)

    functools.update_wrapper(init_process_group, original)
    init_process_group.__module__ = __name__
    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group
