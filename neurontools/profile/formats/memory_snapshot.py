"""Writes PyTorch's memory snapshot, which torch.cuda._memory_viz and the memory visualiser open.

The format follows torch/cuda/_memory_viz.py and torch/cuda/memory.py. Each storage is a segment with one block, because
the runtime allocates each storage by itself. Addresses are those of the simulated device.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from neurontools.profile import Block, Profile
from neurontools.profile.definitions import CATEGORIES, FREED

_LARGE_BYTES = 1 << 20
_TENSORS = 4
_MOST_ALLOCATIONS = 50_000  # limit of allocation events; segments show all final storages anyway


def snapshot(profile: Profile) -> dict[str, Any]:
    """Returns the snapshot as picklable data. A device number is the index of a core in the worker's cores."""
    cores = {core: index for index, core in enumerate(profile.metadata.cores)}
    frames = [
        [{"filename": place.file, "line": place.line, "name": place.function} for place in stack]
        for stack in profile.stacks
    ]

    def frames_of(stack: int, category: int) -> list[dict[str, Any]]:
        found = frames[stack] if stack >= 0 else []
        if category == _TENSORS and found:
            return found
        return [*found, {"filename": f"HBM: {CATEGORIES[category].replace('_', ' ')}", "line": 0, "name": ""}]

    traces: list[list[dict[str, Any]]] = [[] for _ in cores]
    for row in profile.allocations[-_MOST_ALLOCATIONS:]:
        if row.core not in cores:
            continue
        common: dict[str, Any] = {"addr": row.address, "size": row.bytes, "stream": 0, "time_us": row.time_ns // 1000}
        common |= {"compile_context": "N/A", "user_metadata": ""}
        trace = traces[cores[row.core]]
        if row.action == FREED:
            trace += [{"action": action, "frames": [], **common} for action in ("free_requested", "free_completed")]
        else:
            trace.append({"action": "alloc", "frames": frames_of(row.stack, row.category), **common})
    segments = [
        _segment(block, cores[block.core], frames_of(block.stack, block.category))
        for block in _blocks(profile)
        if block.core in cores
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"backend": profile.metadata.device_name, "about": profile.metadata.device_time},
        "external_annotations": _annotations(profile),
    }


def write_snapshot(profile: Profile, path: Path) -> None:
    """Writes the pickled snapshot; raises OSError if writing fails."""
    with path.open("wb") as file:
        pickle.dump(snapshot(profile), file, protocol=4)


def _blocks(profile: Profile) -> list[Block]:
    """Returns the final storages; if the worker died, returns the storages without a recorded release."""
    if len(profile.blocks) or profile.state.has_ended:
        return list(profile.blocks)
    living: dict[int, Block] = {}
    for row in profile.allocations:
        if row.action == FREED:
            living.pop(row.address, None)
        else:
            living[row.address] = Block(row.address, row.bytes, row.core, row.category, row.stack, row.time_ns)
    return list(living.values())


def _segment(block: Block, device: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    size = block.bytes
    return {
        "address": block.address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large" if size > _LARGE_BYTES else "small",
        "segment_pool_id": (0, block.category),
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "device": device,
        "is_expandable": False,
        "frames": frames,
        "blocks": [
            {
                "address": block.address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": frames,
            }
        ],
    }


def _annotations(profile: Profile) -> list[dict[str, Any]]:
    return [
        {"name": f"ProfilerStep#{step.step}", "stage": stage, "device": device, "time_us": time_ns // 1000}
        for device in range(len(profile.metadata.cores))
        for step in profile.steps
        for stage, time_ns in (("START", step.start_ns), ("END", step.end_ns))
    ]
