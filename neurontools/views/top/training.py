"""What a training runtime counts, in the document of neuron-top."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import Process, TrainingRates
from neurontools.model.training import age_seconds

_MOMENTS = (  # told by their age
    "compiling_since_seconds",
    "last_step_at_seconds",
    "collective_since_seconds",
    "checkpointing_since_seconds",
)


@dataclass(frozen=True, slots=True)
class TopTraining:
    """What a training runtime counts beside executions; None: not seen, or no rate yet."""

    steps_total: int
    steps_per_second: float | None
    samples_total: int | None
    samples_per_second: float | None
    compilations_total: int | None
    compile_seconds_total: float | None
    collectives_total: int | None
    collective_seconds_total: float | None
    collective_ratio: float | None
    collective_bytes_total: int | None
    collective_bytes_per_second: float | None
    to_device_bytes_total: int | None
    to_device_bytes_per_second: float | None
    from_device_bytes_total: int | None
    from_device_bytes_per_second: float | None
    input_wait_seconds_total: float | None
    input_wait_ratio: float | None
    checkpoints_total: int | None
    checkpoint_seconds_total: float | None
    host_seconds_total: float | None
    host_ratio: float | None
    compile_wait_seconds_total: float | None
    compile_wait_ratio: float | None
    transfer_seconds_total: float | None
    transfer_ratio: float | None
    compute_seconds_total: float | None
    compute_ratio: float | None
    collective_wait_seconds_total: float | None
    collective_wait_ratio: float | None
    compiling_for_seconds: float | None  # None: it waits for no program, or nobody tells
    since_last_step_seconds: float | None
    in_collective_for_seconds: float | None  # None: it is in none, or nobody tells
    latest_collective: str | None  # the one it is in, else its last
    checkpointing_for_seconds: float | None


def training_part(process: Process, now_seconds: float) -> TopTraining | None:
    """What the document has of a process at `now_seconds` of CLOCK_MONOTONIC."""
    if process.training is None:
        return None
    counters, rates = process.training, process.training_rates or TrainingRates()
    values = {
        name: getattr(part, name) for part in (counters, rates) for name in part.__slots__ if name not in _MOMENTS
    }
    return TopTraining(
        **values,
        compiling_for_seconds=counters.compiling_for_seconds(now_seconds),
        since_last_step_seconds=counters.since_last_step_seconds(now_seconds),
        in_collective_for_seconds=age_seconds(counters.collective_since_seconds, now_seconds),
        checkpointing_for_seconds=age_seconds(counters.checkpointing_since_seconds, now_seconds),
    )
