"""A training process that reports counters, rates, operators and advice."""

from __future__ import annotations

from dataclasses import replace

from neurontools.model import OperatorTime, Process, ScriptAdvice, Snapshot, TrainingCounters, TrainingRates

COUNTERS = TrainingCounters(
    steps_total=1200,
    host_seconds_total=30.0,
    compile_wait_seconds_total=12.0,
    input_wait_seconds_total=7.0,
    transfer_seconds_total=0.3,
    compute_seconds_total=70.0,
    collective_wait_seconds_total=0.0,
)
RATES = TrainingRates(
    steps_per_second=10.0,
    host_ratio=0.3,
    compile_wait_ratio=0.0,
    input_wait_ratio=0.06,
    transfer_ratio=0.01,
    compute_ratio=0.63,
    collective_wait_ratio=0.0,
)
OPERATORS = (
    OperatorTime("aten::mm", 30.0, 7200, 0.3),
    OperatorTime("neuron::collective", 20.0, 1200, 0.1),
    OperatorTime("", 10.0, 1_234_567, 0.2),
)
ADVICE = (
    ScriptAdvice("host-read", "a value was read 9 times", "train.py:41", "read seldom", "faster"),
    ScriptAdvice("float32", "97% float32", None, "bfloat16", "faster"),
)


def with_training(snapshot: Snapshot, **fields: object) -> Snapshot:
    """Returns the snapshot with these fields of its first process, whose models have run for some time."""
    first, *others = snapshot.processes
    models = tuple(replace(model, busy_seconds_total=33.0, busy_ratio=0.25) for model in first.models)
    changed: Process = replace(first, models=models, **fields)  # type: ignore[arg-type]
    return replace(snapshot, processes=(changed, *others))
