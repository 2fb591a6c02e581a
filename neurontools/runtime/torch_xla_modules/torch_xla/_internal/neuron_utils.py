"""torch_xla._internal.neuron_utils: the cores that NEURON_RT_VISIBLE_CORES names."""

from __future__ import annotations

import os

_VARIABLE = "NEURON_RT_VISIBLE_CORES"


def convert_range(range_spec: str) -> list[int]:
    """Returns the cores of `3` or `3-6`. Raises ValueError for another form, or a range that falls."""
    parts = range_spec.split("-")
    try:
        first, last = int(parts[0]), int(parts[-1])
    except ValueError:
        first, last = 1, 0
    if first > last or len(parts) > 2:
        raise ValueError(f"{_VARIABLE}: {range_spec!r} is no core and no rising range of cores; write 3 or 3-6")
    return [*range(first, last + 1)]


def get_visible_cores_list() -> list[int] | None:
    """Returns the cores in NEURON_RT_VISIBLE_CORES, or None if it is not set. Raises ValueError for invalid ones."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return None
    cores = [core for part in text.split(",") for core in convert_range(part)]
    if len({*cores}) < len(cores):
        raise ValueError(f"{_VARIABLE}={text} names a core twice; name each core once")
    return cores


def remap_visible_cores(local_rank: int, local_world_size: int) -> None:
    """Sets NEURON_RT_VISIBLE_CORES to the core of a local rank. Raises ValueError if their numbers differ."""
    cores = get_visible_cores_list() or []
    if len(cores) <= 1 and local_world_size == 1:
        return
    if not 0 <= local_rank < local_world_size == len(cores):
        raise ValueError(
            f"{_VARIABLE} names {len(cores)} cores for local rank {local_rank} of {local_world_size}; name one a rank"
        )
    os.environ[_VARIABLE] = str(cores[local_rank])
