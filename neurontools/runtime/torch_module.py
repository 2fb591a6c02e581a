"""torch.xla or torch.neuron: what torch asks of a device module, and what scripts ask of it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from neurontools.runtime.core import Core
from neurontools.runtime.device import device
from neurontools.runtime.memory import Category


def _core(which: Any) -> Core:
    if which is None:
        return device.current
    return device.core(torch.device(device.name, which) if isinstance(which, int) else torch.device(which))


def is_available() -> bool:
    """Always: the process holds a core from the start."""
    return True


def is_initialized() -> bool:
    """Always: there is nothing left to do."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    """Nothing to do."""


def device_count() -> int:
    """How many NeuronCores this process has."""
    return len(device.cores)


def current_device() -> int:
    """The core that the device's name without a number means."""
    return 0


def set_device(which: Any) -> None:
    """Only core 0 can be current, because torch asks nobody which one is; RuntimeError for another one."""
    if _core(which).local_index:
        raise RuntimeError(
            f"{device.name}:{_core(which).local_index} can't be made current; name it at each tensor, or give the "
            "process this core only with NEURON_RT_VISIBLE_CORES"
        )


def synchronize(device_: Any = None) -> None:
    """Executes what is pending."""
    device.flush_all("Synchronize") if device_ is None else device.flush(_core(device_), "Synchronize")


def manual_seed(seed: int) -> None:
    """Seeds the random numbers of all cores."""
    for core in device.taken:  # cores taken later begin with torch's seed
        core.generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the random numbers of all cores."""
    manual_seed(seed)


def get_rng_state(which: Any = None) -> torch.Tensor:
    """The state of a core's random numbers."""
    device.flush(_core(which), "GeneratorState")
    return _core(which).generator.get_state()


def set_rng_state(state: torch.Tensor, which: Any = None) -> None:
    """Sets the state of a core's random numbers."""
    device.flush(_core(which), "GeneratorState")
    _core(which).generator.set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast may use."""
    return [torch.bfloat16, torch.float16]


def memory_allocated(which: Any = None) -> int:
    """HBM of the tensors and parameters of a core, bytes."""
    memory = _core(which).memory
    return memory.levels[Category.TENSORS] + memory.levels[Category.CONSTANTS]


def max_memory_allocated(which: Any = None) -> int:
    """The highest HBM use of a core so far, all categories, bytes."""
    return _core(which).memory.peak_bytes


def memory_reserved(which: Any = None) -> int:
    """HBM in use on a core, all categories, bytes."""
    return _core(which).memory.total_bytes


def reset_peak_memory_stats(which: Any = None) -> None:
    """Begins anew with the highest use."""
    memory = _core(which).memory
    memory.peak_bytes = memory.total_bytes


def empty_cache() -> None:
    """Nothing to do: freed HBM is free at once."""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always."""
    del including_emulation
    return True


def get_device_name(which: Any = None) -> str:
    """The name of a device."""
    return f"NeuronCore {_core(which).global_index}"


class DeviceContext:
    """`with torch.neuron.device(0)`: accepted for core 0, as set_device."""

    def __init__(self, which: Any) -> None:
        self.which = which

    def __enter__(self) -> DeviceContext:
        set_device(self.which)
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to restore."""


def module(name: str) -> ModuleType:
    """The module to register as torch.<name>."""
    made = ModuleType(f"torch.{name}", __doc__)
    for key, value in globals().items():
        if callable(value) and key not in ("module", "Any", "Core", "ModuleType"):
            setattr(made, key, value)
    made.device = DeviceContext  # type: ignore[attr-defined]
    made._initialized = True  # type: ignore[attr-defined]  # what torch.utils.checkpoint asks before it keeps RNG states
    return made
