"""Trainings as neuron-run counts them, made by hand."""

from __future__ import annotations

from typing import Any

from neurontools.estimate import CountedRun

GIB = 2**30


def summary(**changes: Any) -> dict[str, Any]:
    """A summary of ten steps of one worker: 2 TFLOP of float32 each, batches of 8 samples, an execution a step."""
    rank = {
        "steps_total": 10,
        "samples_total": 80,
        "batches_total": 10,
        "batch_samples": 8,
        "executions_total": 10,
        "executed_tensors_total": 4000,
        "moved_bytes": 10 * GIB,
        "flop_total": 20e12,
        "flops_by_dtype": {"float32": 20e12},
        "collectives_total": 0,
        "collective_bytes": 0,
        "hbm_peak_bytes": 10 * GIB,
        "weight_bytes": GIB,
        "gradient_bytes": GIB,
        "optimizer_state_bytes": 2 * GIB,
        "graphs_compiled_total": 2,
        "training_seconds": 9.0,
    }
    workers = changes.pop("workers", 1)
    ranks = [rank | changes for _ in range(workers)]
    return {"workers": workers, "wall_seconds": 12.0, "samples_per_second": 80 / 9, "instance_type": "trn1.2xlarge"} | {
        "ranks": ranks
    }


def counted(**changes: Any) -> CountedRun:
    """That summary, read."""
    return CountedRun.from_summary(summary(**changes))
