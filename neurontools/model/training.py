"""What a training runtime counts beside executions: steps, compilations, collectives and transfers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Counters in the count of one process. None where the runtime has not seen such a thing, as samples where
    the script does not use the loader."""

    steps_total: int = 0  # calls of an optimizer's step
    samples_total: int | None = None  # along the first dimension of the batches of MpDeviceLoader
    compilations_total: int = 0  # graphs compiled; those found in the cache are not
    compile_seconds_total: float = 0.0
    collectives_total: int = 0
    collective_seconds_total: float = 0.0  # part of the busy time: a core that waits for its peers is in use
    collective_bytes_total: int = 0  # that this process put in
    to_device_bytes_total: int = 0
    from_device_bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The same over the last period; None is unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # of the time
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
