"""The cores onto which traced models are loaded: the next core in turn, or those that a context names.

Source of the rules: "NeuronCore Allocation and Model Placement for Inference (torch-neuronx)" and "PyTorch NeuronX
NeuronCore Placement APIs" of the AWS Neuron documentation. Core indices count the cores of this process from 0.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from neurontools.runtime.tensors.buffers import Core
from neurontools.runtime.tensors.device import device

AUTOMATIC = -1
"""As a core index: the next core in turn. As a number of cores: as many as the model needs, which is one."""


class _Context(threading.local):
    """The innermost placement of this thread, and the core of its executions; None means the next core in turn."""

    placement: tuple[int, int] = (AUTOMATIC, AUTOMATIC)
    pinned: Core | None = None


_context = _Context()
_turn = itertools.count()


def selected_cores(start: int = AUTOMATIC, count: int = AUTOMATIC) -> list[Core]:
    """Returns `count` cores from the index `start`.

    Raises ValueError if this process has no such cores.
    """
    cores = device.cores
    wanted = 1 if count == AUTOMATIC else count
    if start == AUTOMATIC:
        if not 1 <= wanted <= len(cores):
            raise ValueError(_no_such_cores(f"{wanted} NeuronCores", len(cores)))
        first = next(_turn) % len(cores)
        return [cores[(first + offset) % len(cores)] for offset in range(wanted)]
    if start < 0 or wanted < 1 or start + wanted > len(cores):
        name = f"NeuronCore {start}" if wanted == 1 else f"NeuronCores {start} to {start + wanted - 1}"
        raise ValueError(_no_such_cores(name, len(cores)))
    return cores[start : start + wanted]


def cores_of_context() -> list[Core]:
    """Returns the cores for a model that is loaded now: those of the innermost context, else the next core in turn."""
    return selected_cores(*_context.placement)


@contextmanager
def placed(start: int, count: int) -> Iterator[None]:
    """Loads models of this thread onto these cores during the block. The cores are checked at the first load."""
    before, _context.placement = _context.placement, (start, count)
    try:
        yield
    finally:
        _context.placement = before


@contextmanager
def pinned(core: Core) -> Iterator[None]:
    """Executes models that are on several cores on this core during the block, in this thread."""
    before, _context.pinned = _context.pinned, core
    try:
        yield
    finally:
        _context.pinned = before


def pinned_core() -> Core | None:
    """Returns the core of the innermost `pinned` block of this thread."""
    return _context.pinned


def _no_such_cores(name: str, available: int) -> str:
    return (
        f"{name}: this process has {available} NeuronCore(s), counted from 0; ask for more with NEURON_RT_NUM_CORES or "
        "NEURON_RT_VISIBLE_CORES"
    )
