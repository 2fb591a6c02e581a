"""The history of one quantity as data: a JSON document with a value for each step of time."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.client.samples import HostQuantity, Series
from neurontools.model import LogicalNeuronCore, Snapshot
from neurontools.util.units import rfc3339_text

SCHEMA_VERSION = 1
QUANTITIES = (
    "utilization_ratio",
    "flops_per_second",
    "memory_bytes",
    "executions_per_second",
    "latency_p99_seconds",
)
"""Names of the quantities. The last two are of processes."""
QUANTITIES_OF_PROCESSES = QUANTITIES[3:]


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    at: str  # start of the step
    value: float | None  # highest value of a level such as memory, else the mean; None: unknown


@dataclass(frozen=True, slots=True)
class HistoryDocument:
    """A quantity over time, of the host, a device, a NeuronCore or a process."""

    schema_version: int
    quantity: str
    neuron_device: int | None
    neuroncore: int | None
    pid: int | None
    step_seconds: float
    lowest: float | None
    mean: float | None
    highest: float | None
    latest: float | None
    points: tuple[HistoryPoint, ...]  # oldest first; begins with the first step that the daemon still knows


def core_range(
    snapshot: Snapshot, cores: tuple[LogicalNeuronCore, ...], device_index: int, core_index: int | None
) -> range:
    """Returns the physical cores of a device, or of its logical core `core_index`."""
    per_device = snapshot.instance.physical_cores_per_device
    for core in cores:
        if core.index == core_index and core.device_index == device_index:
            return range(core.cores[0].index, core.cores[0].index + max(1, len(core.cores)))
    return range(device_index * per_device, device_index * per_device + max(1, per_device))


def history_document(
    series: Series,
    snapshot: Snapshot,
    quantity: HostQuantity,
    *,
    window_seconds: float,
    point_count: int,
    device_index: int | None = None,
    core_index: int | None = None,
) -> HistoryDocument:
    """Converts a series to its document, with at most `point_count` points for `window_seconds`.

    `snapshot` is the latest snapshot of the series. `device_index` and `core_index` are only shown.
    """
    axis = series.axis(point_count, window_seconds, snapshot.taken_at_unix_seconds)
    curve = series.curve(quantity, axis)
    known = [number for number, value in enumerate(curve.values) if value is not None]
    first = known[0] if known else len(curve.values)
    begins_unix_seconds = axis.begins_seconds + axis.clock_offset_seconds
    return HistoryDocument(
        schema_version=SCHEMA_VERSION,
        quantity=quantity.name,
        neuron_device=device_index,
        neuroncore=core_index,
        pid=quantity.pid,
        step_seconds=round(axis.cell_seconds, 3),
        lowest=_digits(curve.lowest),
        mean=_digits(curve.mean),
        highest=_digits(curve.highest),
        latest=_digits(curve.latest),
        points=tuple(
            HistoryPoint(rfc3339_text(begins_unix_seconds + number * axis.cell_seconds), _digits(value))
            for number, value in enumerate(curve.values)
            if number >= first
        ),
    )


def _digits(value: float | None) -> float | None:
    """Rounds to six significant digits, more than the samples have."""
    return None if value is None else float(f"{value:.6g}")
