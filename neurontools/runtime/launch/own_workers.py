"""Workers that a script starts itself: by torch's start_processes, on which xmp.spawn, Lightning and accelerate's
notebook_launcher stand.

A process has its NeuronCores from its start, so that the tools show it. Before it starts workers it gives them back, if
nothing is on them yet: each worker takes a core by its local rank as soon as it uses the device, and the process takes
cores anew if it uses the device after them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.multiprocessing

from neurontools.runtime.launch import setup, summary_files


def install(environment: Mapping[str, str]) -> None:
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
        setup.give_back_cores()
        directory = environment.get(summary_files.DIRECTORY)
        if directory and start_method == "fork":
            fn = functools.partial(_summed_up, directory, os.getpid(), fn)
        return original(fn, args, nprocs, join, daemon, start_method, *rest, **named)

    module.start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def _summed_up(directory: str, parent_pid: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    """A worker that was forked keeps neuron-run informed as one that was spawned does."""
    if os.getpid() != parent_pid:
        from neurontools.runtime.launch import summary

        summary.keep_in(Path(directory))
    return fn(*arguments)
