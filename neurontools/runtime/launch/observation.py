"""What is looked at before each report instead of being noted when it changes: HBM and the counters of training."""

from __future__ import annotations

from neurontools.model import TrainingCounters
from neurontools.runtime.counting.step_clock import step_clock
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.execution.executor import Executor
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.memory import MEMORY_FIELDS, Category


def observe(executor: Executor, reporter: Reporter) -> None:
    """Tells the reporter the levels and counters of this moment; in its thread, while others train.

    The code of models is left out: it is told with the models.
    """
    for core in device.taken:
        levels = buffers.account_of(core).levels.copy()
        for category, field in MEMORY_FIELDS.items():
            if category is not Category.MODEL_CODE:
                reporter.set_memory(core.local_index, field, levels[category])
    reporter.set_training(training_counters(), executor.operators())


def training_counters() -> TrainingCounters:
    """The counters of this moment, of all cores; any thread may ask."""
    statistics = [core.statistics for core in device.taken]
    told = training_log.counters
    times = step_clock.so_far()
    # A loader that only the script knows of, which says itself how long it waited: to the clock that is the host.
    told_wait = told.input_wait_seconds_total if times.input_wait_seconds is None else None
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
        input_wait_seconds_total=told_wait if times.input_wait_seconds is None else times.input_wait_seconds,
        checkpoints_total=told.checkpoints_total,
        checkpoint_seconds_total=told.checkpoint_seconds_total,
        host_seconds_total=max(0.0, times.host_seconds - (told_wait or 0.0)),
        compile_wait_seconds_total=times.compile_wait_seconds,
        transfer_seconds_total=times.transfer_seconds,
        compute_seconds_total=times.compute_seconds,
        collective_wait_seconds_total=times.collective_wait_seconds,
        compiling_since_seconds=times.compiling_since_seconds,
        last_step_at_seconds=steps.last_seconds,
        collective_since_seconds=times.collective_since_seconds,
        latest_collective=step_clock.latest_collective,
        checkpointing_since_seconds=told.checkpointing_since_seconds,
    )
