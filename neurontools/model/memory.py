"""Memory by category, as the Neuron driver accounts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

from neurontools.model.brief import showing_changes


class _Categories:
    """Memory in use, a field for each category."""

    __slots__: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """The sum of the known categories; None when none is known."""
        return _sum_of_known(_VALUES[type(self)](self))


@dataclass(frozen=True, slots=True)
class DeviceMemory(_Categories):
    """HBM in use at one place, in the driver's eleven categories, bytes.

    The first five are the ones `neuron-monitor` shows; the other six exist in the driver's sysfs tree only.
    A category that cannot be read is None.
    """

    constants_bytes: int | None = 0
    model_code_bytes: int | None = 0
    model_shared_scratchpad_bytes: int | None = 0
    runtime_memory_bytes: int | None = 0
    tensors_bytes: int | None = 0
    collectives_bytes: int | None = 0
    dma_rings_bytes: int | None = 0
    driver_memory_bytes: int | None = 0
    nonshared_scratchpad_bytes: int | None = 0
    notifications_bytes: int | None = 0
    uncategorized_bytes: int | None = 0

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class HostMemory(_Categories):
    """Host memory that serves the devices, in the driver's eight categories, bytes.

    The first four are the ones `neuron-monitor` shows per process; the other four exist per device in sysfs only.
    """

    application_memory_bytes: int | None = 0
    constants_bytes: int | None = 0
    dma_buffers_bytes: int | None = 0
    tensors_bytes: int | None = 0
    dma_rings_bytes: int | None = 0
    driver_memory_bytes: int | None = 0
    notifications_bytes: int | None = 0
    uncategorized_bytes: int | None = 0

    __repr__ = showing_changes


def memory_categories(memory: _Categories) -> dict[str, int | None]:
    """The categories by field name, in the order of their definition."""
    return {name: getattr(memory, name) for name in memory.__slots__}


def sum_device_memory(parts: Iterable[DeviceMemory]) -> DeviceMemory:
    """Category by category; a category is unknown only where it is unknown in every part."""
    return DeviceMemory(**_sum(DeviceMemory, parts))


def sum_host_memory(parts: Iterable[HostMemory]) -> HostMemory:
    """Category by category; a category is unknown only where it is unknown in every part."""
    return HostMemory(**_sum(HostMemory, parts))


def _sum(kind: type[DeviceMemory | HostMemory], parts: Iterable[DeviceMemory | HostMemory]) -> dict[str, int | None]:
    by_category = zip(*map(_VALUES[kind], parts), strict=True)
    return {field.name: _sum_of_known(values) for field, values in zip(fields(kind), by_category, strict=False)}


def _sum_of_known(values: tuple[int | None, ...]) -> int | None:
    if None in values:
        values = tuple(value for value in values if value is not None)
    return sum(values) if values else None  # type: ignore[arg-type]


# The values of all categories at once: a live view adds up some thousand of them a second.
_VALUES: dict[type[_Categories], Callable[[_Categories], tuple[int | None, ...]]] = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in (DeviceMemory, HostMemory)
}
