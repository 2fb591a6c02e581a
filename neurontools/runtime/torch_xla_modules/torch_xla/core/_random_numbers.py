"""The random numbers of the devices: their state as one number, which is all that torch_xla's functions have for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from neurontools.runtime.tensors.core import Core
from neurontools.runtime.tensors.device import device as _device
from neurontools.runtime.torch_device import torch_module


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seeds the random numbers of a device, or of all."""
    cores = _device.cores if device is None else [torch_module.core_of(device)]
    for core in cores:
        _device.flush(core, "GeneratorState")
        core.generator.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> int:
    """A number from which `set_rng_state` makes the same random numbers that come now, in another process too.

    It is the seed as long as nothing was drawn. The state after that has 20 kbit, of which no number of torch_xla's
    could tell: so the device goes on from a seed that follows from its state, and this seed is the answer. Who saves it
    and goes on draws what a resumed run draws. `torch.xla.get_rng_state` has the whole state and changes nothing.
    """
    core = torch_module.core_of(device)
    _device.flush(core, "GeneratorState")
    if not _is_fresh(core):
        state = core.generator.get_state().numpy().tobytes()
        core.generator.manual_seed(int.from_bytes(hashlib.sha256(state).digest()[:4], "little"))
    return core.generator.initial_seed()


def _is_fresh(core: Core) -> bool:
    """Whether nothing was drawn since the device was seeded."""
    seeded = torch.Generator().manual_seed(core.generator.initial_seed())
    return torch.equal(seeded.get_state(), core.generator.get_state())


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Random numbers drawn within leave those that come after it as they would be without it."""
    if not enabled:
        yield
        return
    before = torch_module.get_rng_state(device)
    try:
        yield
    finally:
        torch_module.set_rng_state(before, device)
