"""torch_xla on simulated NeuronCores: the parts of its API that training scripts use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from neurontools.runtime.launch.import_hook import VERSIONS as _VERSIONS
from neurontools.runtime.launch.install import install_runtime as _install

_install()

from neurontools.runtime.tensors.device import device as _device  # noqa: E402

from . import _XLAC as _XLAC  # noqa: E402
from . import runtime  # noqa: E402
from .core import xla_model as _xm  # noqa: E402
from .core.xla_model import set_rng_state as _set_rng_state  # noqa: E402

__version__ = _VERSIONS["torch_xla"]


def device(index: int | None = None) -> torch.device:
    """Returns the XLA device of this process with the given index; by default the first device."""
    return _xm.xla_device(index)


def devices() -> list[torch.device]:
    return [torch.device(_device.name, i) for i in range(len(_device.cores))]


def real_devices() -> list[str]:
    """Returns the names of all devices of this process, such as NEURON:0."""
    return [f"NEURON:{core.global_index}" for core in _device.cores]


def device_count() -> int:
    """Returns the number of devices of all processes."""
    return runtime.global_device_count()


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Executes the pending operators, as mark_step does."""
    _xm.mark_step(wait, reset_scope)


@contextmanager
def step() -> Iterator[None]:
    """A context manager that executes pending operators on entry, and the operators of its block on exit."""
    sync()
    try:
        yield
    finally:
        sync()


def compile(  # noqa: A001  (the name of torch_xla)
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    num_different_graphs_allowed: int | None = None,
) -> Any:
    """Wraps a function so that its operators become one graph, executed when the function returns."""

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        sync()
        _device.enter_lazy_scope()
        try:
            result = f(*arguments, **keywords)  # type: ignore[misc]
        finally:
            _device.leave_lazy_scope()
        sync()
        return result

    return step() if f is None else wrapped


def manual_seed(seed: int, device: Any = None) -> None:
    """Seeds the random number generator of a device, or of all devices."""
    _set_rng_state(seed, device)


def launch(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Runs a function in each process of the job."""
    from .distributed import xla_multiprocessing

    xla_multiprocessing.spawn(fn, args=args, nprocs=1 if debug_single_process else None, start_method=start_method)
