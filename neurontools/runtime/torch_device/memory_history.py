"""torch.xla.memory: allocations with their lines, as torch.cuda.memory has them, for PyTorch's memory visualiser."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from neurontools.profile import Profile
from neurontools.profile.formats.memory_snapshot import snapshot, write_snapshot
from neurontools.runtime.profiling.recorder import InMemoryProfile
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import size_text
from neurontools.runtime.torch_device.profiler import open_window

_open: list[InMemoryProfile] = []


def _record_memory_history(
    enabled: str | bool | None = "all", *_arguments: Any, clear_history: bool = False, **_keywords: Any
) -> None:
    """Begins to note allocations with their lines, or ends it for None. What else torch.cuda's takes is accepted."""
    if not enabled:
        while _open:
            _open.pop().stop()
        return
    if _open and clear_history:
        _open[0].begin_anew()
    elif not _open:
        _open.append(open_window())


def _snapshot(device: Any = None) -> dict[str, Any]:
    """What is allocated now, and what was allocated and freed since the history is recorded."""
    del device  # as torch.cuda's: all cores are in it
    return snapshot(_profile())


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a snapshot to a file."""
    write_snapshot(_profile(), Path(filename))


def memory_summary(which: Any = None, abbreviated: bool = False) -> str:
    """HBM of each core by category, as text."""
    del which, abbreviated
    lines = []
    for core in device.cores:
        memory = buffers.account_of(core)
        lines.append(
            f"NeuronCore {core.global_index}: {size_text(memory.total_bytes)} of {size_text(memory.limit_bytes)}"
        )
        lines += [
            f"  {field.removesuffix('_bytes'):<24} {size_text(level)}" for field, level in memory.by_field().items()
        ]
        lines.append(f"  {'peak':<24} {size_text(memory.peak_bytes)}")
    return "\n".join(lines)


def _profile() -> Profile:
    device.flush_all("Snapshot")
    if _open:
        return _open[0].so_far()
    window = open_window()
    return window.stop()


def module(name: str, others: dict[str, Any]) -> ModuleType:
    """The module torch.<name>.memory, with functions that are elsewhere too."""
    made = ModuleType(f"torch.{name}.memory", __doc__)
    for function in (_record_memory_history, _snapshot, _dump_snapshot, memory_summary):
        setattr(made, function.__name__, function)
    for key, value in others.items():
        setattr(made, key, value)
    return made
