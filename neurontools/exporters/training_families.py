"""Families of what training runtimes count beside executions: `neurontools_process_…`."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.model import Process
from neurontools.model.training import STEP_PARTS

_FAMILIES = (
    ("steps_total", "steps", "Calls of an optimizer's step"),
    ("samples_total", "samples", "Samples in the batches of the loader"),
    ("compilations_total", "compilations", "Graphs compiled, not found in the cache"),
    ("compile_seconds_total", "compile_seconds", "Time of compilations"),
    ("collectives_total", "collectives", "Collectives carried out"),
    ("collective_seconds_total", "collective_seconds", "Time in collectives, part of the busy time"),
    ("collective_bytes_total", "collective_bytes", "Bytes that the process put into collectives"),
    ("to_device_bytes_total", "to_device_bytes", "Bytes copied from the host to the device"),
    ("from_device_bytes_total", "from_device_bytes", "Bytes copied from the device to the host"),
    ("input_wait_seconds_total", "input_wait_seconds", "Time that steps waited for their batch"),
    ("checkpoints_total", "checkpoints", "Checkpoints written"),
    ("checkpoint_seconds_total", "checkpoint_seconds", "Time that the script took to write checkpoints"),
)
_STEP_TIME = Definition(
    "neurontools_process_step_time_seconds", Kind.COUNTER, "Where the time of the process went; the parts add up"
)
_PARTS = tuple(part.name.replace(" ", "_") for part in STEP_PARTS)
_COMPILING = Definition(
    "neurontools_process_compiling_seconds", Kind.GAUGE, "How long the process has been waiting for a program, else 0"
)
_SINCE_STEP = Definition(
    "neurontools_process_seconds_since_last_step", Kind.GAUGE, "Time since the process ended its latest step"
)
_DEFINITIONS = tuple(
    (field, Definition(f"neurontools_process_{name}", Kind.COUNTER, text)) for field, name, text in _FAMILIES
)


def training_families(holders: list[Process], now_seconds: float, label: LabelTexts) -> Iterator[Family]:
    """The families of these processes; one whose runtime does not count these has no samples.

    `now_seconds` is the CLOCK_MONOTONIC of the snapshot.
    """
    of_process = label.named("pid")
    counting = [(of_process(process.pid), process.training) for process in holders if process.training is not None]
    for field, definition in _DEFINITIONS:
        samples: list[Sample] = [(text, getattr(counters, field)) for text, counters in counting]
        yield Family(definition, [(text, value) for text, value in samples if value is not None])
    of_parts = label.rows("pid", "part", last=_PARTS)
    parts: list[Sample] = []
    compiling: list[Sample] = []
    since_step: list[Sample] = []
    for process in holders:
        counters = process.training
        if counters is None:
            continue
        text = of_process(process.pid)
        if counters.host_seconds_total is not None:
            values = [getattr(counters, part.counter) for part in STEP_PARTS]
            parts += [pair for pair in zip(of_parts(process.pid), values, strict=True) if pair[1] is not None]
            compiling.append((text, counters.compiling_for_seconds(now_seconds) or 0.0))
        if (since := counters.since_last_step_seconds(now_seconds)) is not None:
            since_step.append((text, since))
    yield Family(_STEP_TIME, parts)
    yield Family(_COMPILING, compiling)
    yield Family(_SINCE_STEP, since_step)
