"""The HBM of this process's cores, as torch.cuda.memory shows that of GPUs: sizes, peaks, snapshots and history.

*Allocated* bytes are those of tensors, parameters included. *Reserved* bytes are all HBM that the process uses, as the
daemon shows it: also loaded models, their scratchpad and the runtime. The runtime keeps no free HBM in a cache.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from neurontools.profile import Profile
from neurontools.profile.formats.memory_snapshot import snapshot, write_snapshot
from neurontools.runtime.profiling.recorder import InMemoryProfile
from neurontools.runtime.tensors.buffers import CoreMemory, buffers, size_text
from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device.profiler import open_window
from neurontools.runtime.torch_device.torch_module import core_of

_accumulated_before: dict[int, tuple[int, ...]] = {}
"""The accumulated counters at their last reset, by the local index of the core."""


def _memory_of(which: Any) -> CoreMemory:
    return buffers.account_of(core_of(which))


def memory_allocated(which: Any = None) -> int:
    """Returns the HBM of a core's tensors and parameters, in bytes."""
    return _memory_of(which).tensor_bytes


def max_memory_allocated(which: Any = None) -> int:
    """Returns the largest HBM of a core's tensors and parameters since `reset_peak_memory_stats`, in bytes."""
    return _memory_of(which).tensor_peak_bytes


def memory_reserved(which: Any = None) -> int:
    """Returns the HBM use of a core, all categories, in bytes."""
    return _memory_of(which).total_bytes


def max_memory_reserved(which: Any = None) -> int:
    """Returns the largest HBM use of a core, all categories, since `reset_peak_memory_stats`, in bytes."""
    return _memory_of(which).peak_bytes


def reset_peak_memory_stats(which: Any = None) -> None:
    """Resets the peaks of a core to its present HBM use."""
    memory = _memory_of(which)
    memory.peak_bytes, memory.tensor_peak_bytes = memory.total_bytes, memory.tensor_bytes


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def reset_accumulated_memory_stats(which: Any = None) -> None:
    """Resets the counts of allocations, frees, retries and refused allocations of a core."""
    _accumulated_before[core_of(which).local_index] = _accumulated(_memory_of(which))


def _accumulated(memory: CoreMemory) -> tuple[int, ...]:
    counts = (memory.allocations_total, memory.frees_total, memory.retries_total, memory.refusals_total)
    freed_bytes_total = memory.allocated_bytes_total - memory.total_bytes
    return (*counts, memory.allocated_bytes_total, freed_bytes_total)


def memory_stats_as_nested_dict(which: Any = None) -> dict[str, Any]:
    """Returns the statistics of a core's HBM in the form of torch_neuronx: sizes in bytes, and counts.

    The results of one execution are one allocation; each tensor is freed by itself.
    """
    memory = _memory_of(which)
    now = _accumulated(memory)
    before = _accumulated_before.get(core_of(which).local_index, (0,) * len(now))
    requests, frees, retries, refusals, allocated, freed = (a - b for a, b in zip(now, before, strict=True))
    tensors = {"current": memory.tensor_bytes, "peak": memory.tensor_peak_bytes}
    reserved = {"current": memory.total_bytes, "peak": memory.peak_bytes, "allocated": allocated, "freed": freed}
    return {
        "allocated_bytes": tensors,
        "active_bytes": dict(tensors),
        "reserved_bytes": reserved,
        "allocation_requests": requests,
        "num_tensor_frees": frees,
        "num_alloc_retries": retries,
        "num_ooms": refusals,
    }


def flat_memory_stats(which: Any = None) -> dict[str, int]:
    """Returns the statistics of a core's HBM under the names of torch.accelerator. Adds the bytes by category."""
    nested = memory_stats_as_nested_dict(which)
    sizes = {f"{name}.all.{key}": n for name, by in nested.items() if isinstance(by, dict) for key, n in by.items()}
    counts = {name: n for name, n in nested.items() if isinstance(n, int)}
    return sizes | counts | {f"{name}.current": level for name, level in _memory_of(which).by_field().items()}


def memory_stats(which: Any = None) -> dict[str, Any]:
    """Returns the statistics of a core's HBM under the names of torch_neuronx and of torch.accelerator."""
    return flat_memory_stats(which) | memory_stats_as_nested_dict(which)


def mem_get_info(which: Any = None) -> tuple[int, int]:
    """Returns the free and the total HBM of a core, in bytes."""
    memory = _memory_of(which)
    return memory.limit_bytes - memory.total_bytes, memory.limit_bytes


def empty_cache() -> None:
    """Does nothing: freed HBM is available immediately."""


def memory_summary(which: Any = None, abbreviated: bool = False) -> str:
    """Returns the HBM use of a core as text: now and at its peak, and by category unless `abbreviated`."""
    core, memory, stats = core_of(which), _memory_of(which), memory_stats_as_nested_dict(which)
    counts = ("allocation_requests", "num_tensor_frees", "num_alloc_retries", "num_ooms")
    lines = [
        f"Neuron Memory Summary, Device {device.name}:{core.local_index}, NeuronCore {core.global_index}",
        f"  {size_text(memory.limit_bytes)} in total; {', '.join(f'{name} {stats[name]}' for name in counts)}",
        f"  {'':<24} {'current':>12} {'peak':>12}",
        f"  {'allocated':<24} {size_text(memory.tensor_bytes):>12} {size_text(memory.tensor_peak_bytes):>12}",
        f"  {'reserved':<24} {size_text(memory.total_bytes):>12} {size_text(memory.peak_bytes):>12}",
    ]
    if not abbreviated:
        levels = memory.by_field().items()
        lines += [f"  {name.removesuffix('_bytes'):<24} {size_text(level):>12}" for name, level in levels]
    return "\n".join(lines)


_open_windows: list[InMemoryProfile] = []


def _record_memory_history(
    enabled: str | bool | None = "all", *_arguments: Any, clear_history: bool = False, **_keywords: Any
) -> None:
    """Starts recording allocations with their source lines. Stops the recording if `enabled` is false.

    Accepts all arguments of torch.cuda's function. Uses only `enabled` and `clear_history`.
    """
    if not enabled:
        while _open_windows:
            _open_windows.pop().stop()
        return
    if _open_windows and clear_history:
        _open_windows[0].restart()
    elif not _open_windows:
        _open_windows.append(open_window())


def _snapshot(device: Any = None) -> dict[str, Any]:
    """Returns the current allocations, and the history of allocations since recording began."""
    del device  # torch.cuda has this argument; here, a snapshot has all cores
    return snapshot(_current_profile())


def memory_snapshot(mempool_id: Any = None) -> list[dict[str, Any]]:
    """Returns the current allocations of all cores, one segment for each storage."""
    del mempool_id  # torch.cuda has this argument; a core has one pool
    segments: list[dict[str, Any]] = _snapshot()["segments"]
    return segments


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    write_snapshot(_current_profile(), Path(filename))


def _current_profile() -> Profile:
    device.flush_all("Snapshot")
    if _open_windows:
        return _open_windows[0].read_profile()
    return open_window().stop()


FUNCTIONS = (
    *(memory_allocated, max_memory_allocated, memory_reserved, max_memory_reserved, memory_stats, mem_get_info),
    *(reset_peak_memory_stats, reset_accumulated_memory_stats, memory_stats_as_nested_dict, empty_cache),
    *(memory_summary, memory_snapshot, _record_memory_history, _snapshot, _dump_snapshot),
)
_OLD_NAMES = ("reset_max_memory_allocated", "reset_max_memory_cached", "memory_cached", "max_memory_cached")
NAMES: dict[str, Any] = {f.__name__: f for f in FUNCTIONS} | {name: globals()[name] for name in _OLD_NAMES}
"""The functions of the modules torch.<name>.memory, torch.<name> and torch_neuronx."""


def add_memory_functions(module: Any) -> None:
    """Adds these functions to the device module, and the module `memory`, which has them too."""
    memory = module.memory = ModuleType(f"{module.__name__}.memory", __doc__)
    for part in (module, memory):
        for name, function in NAMES.items():
            setattr(part, name, function)
