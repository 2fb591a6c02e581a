"""The device module torch.xla or torch.neuron, as torch and scripts use it."""

from __future__ import annotations

import contextlib
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from neurontools.runtime.tensors.buffers import Core
from neurontools.runtime.tensors.device import device, neuroncore_version, worker

_torch_device = device.torch_device  # renamed, because functions have a parameter `device`


def core_of(which: Any) -> Core:
    """Returns the core of an index, a torch device, or None: the current core. Raises RuntimeError for a wrong core."""
    if which is None:
        return device.current
    return device.core(torch.device(device.name, which) if isinstance(which, int) else torch.device(which))


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def init() -> None:
    """Does nothing: the device needs no initialization."""


_lazy_init = init


def device_count() -> int:
    return len(device.cores)


def current_device() -> int:
    return 0


def set_device(which: Any) -> None:
    """Accepts core 0 and raises RuntimeError for other cores.

    torch does not ask a Python device for its current core, so that core is always 0.
    """
    if core_of(which).local_index:
        raise RuntimeError(
            f"{device.name}:{core_of(which).local_index} can't be made current; name it at each tensor, or give the "
            "process this core only with NEURON_RT_VISIBLE_CORES"
        )


def synchronize(device_: Any = None) -> None:
    """Executes the pending graph of a core; None means all cores."""
    device.flush_all("Synchronize") if device_ is None else device.flush(core_of(device_), "Synchronize")


def manual_seed(seed: int) -> None:
    for core in device.acquired_cores:  # a core that is acquired later gets torch's seed
        core.generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> int:
    """Seeds the random generators of all cores with one random number and returns that number."""
    number = int(torch.Generator().seed())
    manual_seed(number)
    return number


seed_all = seed


def initial_seed() -> int:
    return device.current.generator.initial_seed()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_rng_state(which: Any = None) -> torch.Tensor:
    """Returns the state of a core's random generator, after executing the pending graph of the core."""
    device.flush(core_of(which), "GeneratorState")
    return core_of(which).generator.get_state()


def set_rng_state(state: torch.Tensor, which: Any = None) -> None:
    """Sets the state of a core's random generator, after executing the pending graph of the core."""
    device.flush(core_of(which), "GeneratorState")
    core_of(which).generator.set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_device_name(which: Any = None) -> str:
    """Returns the name of a core, such as `NeuronCore 3`, with its index on the host."""
    return f"NeuronCore {core_of(which).global_index}"


def get_device_properties(which: Any = None) -> SimpleNamespace:
    """Returns `name`, `total_memory` in bytes, `neuroncore_index` on the host, and `device_index` of a core."""
    core = core_of(which)
    return SimpleNamespace(
        name=get_device_name(which),
        total_memory=core.memory.limit_bytes,
        neuroncore_index=core.global_index,
        device_index=core.memory.device_index,
    )


def get_device_capability(which: Any = None) -> tuple[int, int] | None:
    """Returns the NeuronCore version, such as (2, 0) on Trn1. None without a daemon, which knows the instance type."""
    core_of(which)
    version = None if worker.instance_type is None else neuroncore_version(worker.instance_type)
    return None if version is None else (version, 0)


class Stream:
    """The only stream of a core, which executes operators in the order of recording."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        del priority
        self.device = _torch_device(core_of(device))
        self.device_index, self.stream_id = self.device.index, 0

    def synchronize(self) -> None:
        synchronize(self.device)

    def query(self) -> bool:
        return not core_of(self.device).graph.signatures

    def wait_stream(self, stream: Any) -> None:
        """Does nothing: a core executes in the order of recording."""

    def wait_event(self, event: Any) -> None:
        """Does nothing: a core executes in the order of recording."""

    def record_event(self, event: Any = None) -> Any:
        """Records an event after all operators so far and returns the event. Creates it if `event` is None."""
        new_event = Event(enable_timing=True) if event is None else event
        new_event.record(self)
        return new_event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_error: object) -> None:
        """Does nothing: there is nothing to restore."""


class Event:
    """A timestamp of a core, taken after all previously recorded operators have executed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        del blocking
        if interprocess:
            raise NotImplementedError(f"{device.name}: an event can't be shared with other processes")
        self.is_timed = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        """Executes the pending graph of the stream's core (None: of all cores), then stores the time."""
        synchronize(None if stream is None else getattr(stream, "device", None))
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Does nothing: `record` has already waited."""

    synchronize = wait

    def query(self) -> bool:
        """Returns True: `record` has already waited."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Returns the milliseconds from this event to `end`. Raises RuntimeError without both times."""
        if self._seconds is None or end._seconds is None or not (self.is_timed and end.is_timed):
            raise RuntimeError("both events must be made with enable_timing=True and recorded")
        return (end._seconds - self._seconds) * 1e3


def current_stream(which: Any = None) -> Stream:
    return Stream(which)


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Does nothing: a core has one stream."""


def stream(which: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager that does nothing: a core has one stream."""
    return contextlib.nullcontext(which)


class DeviceContext:
    """The context manager `torch.neuron.device(0)`; like set_device, it accepts core 0 only."""

    def __init__(self, which: Any) -> None:
        self.which = which

    def __enter__(self) -> DeviceContext:
        set_device(self.which)
        return self

    def __exit__(self, *_error: object) -> None:
        """Does nothing: there is nothing to restore."""


class DeviceOf(DeviceContext):
    """The context manager `torch.neuron.device_of(tensor)`; for a device tensor, it accepts core 0 only."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == device.name else None)


_HELPERS = (
    "module",
    "public_functions",
    "core_of",
    "neuroncore_version",
    "Any",
    "Core",
    "ModuleType",
    "SimpleNamespace",
)


def public_functions() -> dict[str, Any]:
    """Returns the functions and classes of the device module, by name."""
    found = {key: value for key, value in globals().items() if callable(value) and key not in _HELPERS}
    return found | {"device": DeviceContext, "device_of": DeviceOf}


def module(name: str) -> ModuleType:
    class DeviceModule(ModuleType):
        def __getattr__(self, attribute: str) -> Any:
            raise AttributeError(f"torch.{name}.{attribute} is not part of the simulated device")

    module = DeviceModule(f"torch.{name}", __doc__)
    for key, value in public_functions().items():
        setattr(module, key, value)
    module._initialized = True  # type: ignore[attr-defined]  # torch.utils.checkpoint reads it before it saves RNG states
    return module
