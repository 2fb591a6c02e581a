"""What is looked at before each report instead of being noted when it changes: HBM and the counters of training."""

from __future__ import annotations

from neurontools.model import TrainingCounters
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import MEMORY_FIELDS, Category


def observe(reporter: Reporter) -> None:
    """Tells the reporter the levels and counters of this moment; in its thread, while others train.

    The code of models is left out: it is told with the models.
    """
    for core in device.taken:
        levels = buffers.account_of(core).levels.copy()
        for category, field in MEMORY_FIELDS.items():
            if category is not Category.MODEL_CODE:
                reporter.set_memory(core.local_index, field, levels[category])
    reporter.set_training(training_counters())


def training_counters() -> TrainingCounters:
    """The counters of this moment, of all cores; any thread may ask."""
    statistics = [core.statistics for core in device.taken]
    told = training_log.counters
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
        input_wait_seconds_total=_first_known(
            told.input_wait_seconds_total, steps.loader_wait_seconds if steps.batches_total else None
        ),
        checkpoints_total=told.checkpoints_total,
        checkpoint_seconds_total=told.checkpoint_seconds_total,
    )


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
