"""torch.xla or torch.neuron: what torch asks of a device module, and what scripts ask of it."""

from __future__ import annotations

import contextlib
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from neurontools.runtime.tensors.buffers import Category, Core, buffers
from neurontools.runtime.tensors.device import device


def core_of(which: Any) -> Core:
    """The core of an index, a torch device or None for the current one; RuntimeError when the process has it not."""
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
    if core_of(which).local_index:
        raise RuntimeError(
            f"{device.name}:{core_of(which).local_index} can't be made current; name it at each tensor, or give the "
            "process this core only with NEURON_RT_VISIBLE_CORES"
        )


def synchronize(device_: Any = None) -> None:
    """Executes what is pending."""
    device.flush_all("Synchronize") if device_ is None else device.flush(core_of(device_), "Synchronize")


def manual_seed(seed: int) -> None:
    """Seeds the random numbers of all cores."""
    for core in device.taken:  # cores taken later begin with torch's seed
        core.generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the random numbers of all cores."""
    manual_seed(seed)


def seed() -> int:
    """Seeds the random numbers of all cores with a number that nobody knows before."""
    number = int(torch.Generator().seed())
    manual_seed(number)
    return number


seed_all = seed


def initial_seed() -> int:
    """What the random numbers of the current core began with."""
    return device.current.generator.initial_seed()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of the random numbers of all cores."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Sets the states of the random numbers of all cores."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_rng_state(which: Any = None) -> torch.Tensor:
    """The state of a core's random numbers."""
    device.flush(core_of(which), "GeneratorState")
    return core_of(which).generator.get_state()


def set_rng_state(state: torch.Tensor, which: Any = None) -> None:
    """Sets the state of a core's random numbers."""
    device.flush(core_of(which), "GeneratorState")
    core_of(which).generator.set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast may use."""
    return [torch.bfloat16, torch.float16]


def memory_allocated(which: Any = None) -> int:
    """HBM of the tensors and parameters of a core, bytes."""
    memory = buffers.account_of(core_of(which))
    return memory.levels[Category.TENSORS] + memory.levels[Category.CONSTANTS]


def max_memory_allocated(which: Any = None) -> int:
    """The highest HBM use of a core so far, all categories, bytes."""
    return buffers.account_of(core_of(which)).peak_bytes


def memory_reserved(which: Any = None) -> int:
    """HBM in use on a core, all categories, bytes."""
    return buffers.account_of(core_of(which)).total_bytes


def reset_peak_memory_stats(which: Any = None) -> None:
    """Begins anew with the highest use."""
    memory = buffers.account_of(core_of(which))
    memory.peak_bytes = memory.total_bytes


def max_memory_reserved(which: Any = None) -> int:
    """The highest HBM use of a core so far, bytes."""
    return buffers.account_of(core_of(which)).peak_bytes


def memory_stats(which: Any = None) -> dict[str, int]:
    """HBM of a core by category, now and at its highest, bytes."""
    memory = buffers.account_of(core_of(which))
    stats = {f"{name}.current": level for name, level in memory.by_field().items()}
    total = {"current": memory.total_bytes, "peak": memory.peak_bytes}
    return stats | {
        f"{kind}_bytes.all.{key}": value for kind in ("allocated", "reserved") for key, value in total.items()
    }


def mem_get_info(which: Any = None) -> tuple[int, int]:
    """Free HBM and all HBM of a core, bytes."""
    memory = buffers.account_of(core_of(which))
    return memory.limit_bytes - memory.total_bytes, memory.limit_bytes


def reset_accumulated_memory_stats(which: Any = None) -> None:
    """Nothing accumulates."""
    core_of(which)


def empty_cache() -> None:
    """Nothing to do: freed HBM is free at once."""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always."""
    del including_emulation
    return True


def get_device_name(which: Any = None) -> str:
    """The name of a device."""
    return f"NeuronCore {core_of(which).global_index}"


def init() -> None:
    """Nothing left to do."""


def get_device_properties(which: Any = None) -> SimpleNamespace:
    """What a core is: `name`, `total_memory` in bytes, `neuroncore_index` on the host, `device_index`."""
    core = core_of(which)
    return SimpleNamespace(
        name=get_device_name(which),
        total_memory=core.memory.limit_bytes,
        neuroncore_index=core.global_index,
        device_index=core.memory.device_index,
    )


class Stream:
    """The one queue of a core: everything recorded is executed in its order."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        del priority
        self.device = torch.device(_device_name(), core_of(device).local_index)
        self.device_index, self.stream_id = self.device.index, 0

    def synchronize(self) -> None:
        """Executes what is pending."""
        synchronize(self.device)

    def query(self) -> bool:
        """Whether nothing is pending."""
        return not core_of(self.device).graph.signatures

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for: the order of recording is kept."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for: the order of recording is kept."""

    def record_event(self, event: Any = None) -> Any:
        """An event after what was recorded so far."""
        made = Event(enable_timing=True) if event is None else event
        made.record(self)
        return made

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to restore."""


class Event:
    """A moment of a core, taken when everything recorded before it has been executed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        del blocking
        if interprocess:
            raise NotImplementedError(f"{device.name}: an event can't be shared with other processes")
        self.is_timed = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        """Executes what is pending and takes the time."""
        synchronize(None if stream is None else getattr(stream, "device", None))
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for: `record` has waited."""

    def query(self) -> bool:
        """Always: `record` has waited."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another one; RuntimeError unless both were recorded with a time."""
        if self._seconds is None or end._seconds is None or not (self.is_timed and end.is_timed):
            raise RuntimeError("both events must be made with enable_timing=True and recorded")
        return (end._seconds - self._seconds) * 1e3


def current_stream(which: Any = None) -> Stream:
    """The queue of a core."""
    return Stream(which)


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Nothing to choose: a core has one queue."""


def stream(which: Any) -> contextlib.AbstractContextManager[Any]:
    """A context for which queue is used: a core has one."""
    return contextlib.nullcontext(which)


def _device_name() -> str:
    return device.name


class DeviceContext:
    """`with torch.neuron.device(0)`: accepted for core 0, as set_device."""

    def __init__(self, which: Any) -> None:
        self.which = which

    def __enter__(self) -> DeviceContext:
        set_device(self.which)
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to restore."""


class DeviceOf(DeviceContext):
    """`with torch.neuron.device_of(tensor)`: accepted for tensors of core 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == device.name else None)


def module(name: str) -> ModuleType:
    """The module to register as torch.<name>."""

    class DeviceModule(ModuleType):
        def __getattr__(self, attribute: str) -> Any:
            raise AttributeError(f"torch.{name}.{attribute} is not part of the simulated device")

    made = DeviceModule(f"torch.{name}", __doc__)
    for key, value in globals().items():
        if callable(value) and key not in ("module", "Any", "Core", "ModuleType", "SimpleNamespace"):
            setattr(made, key, value)
    made.device = DeviceContext  # type: ignore[attr-defined]
    made.device_of = DeviceOf  # type: ignore[attr-defined]
    made._initialized = True  # type: ignore[attr-defined]  # what torch.utils.checkpoint asks before it keeps RNG states
    return made
