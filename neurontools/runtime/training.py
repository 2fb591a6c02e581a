"""What this process counts beside executions, for the reports to the daemon."""

from __future__ import annotations

from neurontools.model import TrainingCounters
from neurontools.runtime.device import device
from neurontools.runtime.steps import steps


def training_counters() -> TrainingCounters:
    """The counters of this moment, of all cores; any thread may ask."""
    statistics = [core.statistics for core in device.taken]
    return TrainingCounters(
        steps_total=steps.steps_total,
        samples_total=steps.samples_total if steps.batches_total else None,
        compilations_total=sum(each.compilations_total for each in statistics),
        compile_seconds_total=sum(each.compile_seconds for each in statistics),
        collectives_total=sum(each.collectives_total for each in statistics),
        collective_seconds_total=sum(each.collective_seconds for each in statistics),
        collective_bytes_total=sum(each.collective_bytes for each in statistics),
        to_device_bytes_total=sum(each.to_device_bytes for each in statistics),
        from_device_bytes_total=sum(each.from_device_bytes for each in statistics),
    )
