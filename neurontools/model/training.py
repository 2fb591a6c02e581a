"""What a training runtime counts beside executions: steps, compilations, collectives and transfers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Counters in the count of one process. None where the runtime has not seen such a thing, as samples where
    the script does not use the loader, or where nobody tells, as collectives of a script that reports by itself."""

    steps_total: int = 0  # calls of an optimizer's step
    samples_total: int | None = None  # along the first dimension of the batches of MpDeviceLoader
    compilations_total: int | None = None  # graphs compiled; those found in the cache are not
    compile_seconds_total: float | None = None
    collectives_total: int | None = None
    collective_seconds_total: float | None = None  # part of the busy time: a core that waits for its peers is in use
    collective_bytes_total: int | None = None  # that this process put in
    to_device_bytes_total: int | None = None
    from_device_bytes_total: int | None = None
    input_wait_seconds_total: float | None = None  # that steps waited for their batch
    checkpoints_total: int | None = None  # written
    checkpoint_seconds_total: float | None = None  # that the script took to write them


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The same over the last period; None is unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # of the time
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    input_wait_ratio: float | None = None  # of the time
