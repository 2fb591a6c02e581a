"""Trainings and models as neuron-run counts them, made by hand."""

from __future__ import annotations

from typing import Any

from neurontools.estimate import CountedRun

MIB, GIB = 2**20, 2**30
BERT = ["aten::embedding", "aten::linear", "aten::_scaled_dot_product_flash_attention_for_cpu"]


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


def bert(**changes: Any) -> dict[str, Any]:
    """A summary of 100 executions of BERT-base in bfloat16, 128 tokens, batch 1, on both cores of an inf2.xlarge."""
    model = {
        "name": "Bert", "batch_samples": 1, "executions_total": 100, "padded_samples": 0, "cores_per_execution": 1,
        "cores": [0, 1], "flops_by_dtype": {"bfloat16": 22.35e9}, "moved_bytes": 210 * MIB, "weight_bytes": 200 * MIB,
        "code_bytes": 0, "activation_bytes": 10 * MIB, "operators": BERT,
    }  # fmt: skip
    return summary(steps_total=0, traced_models=[model | changes]) | {"instance_type": "inf2.xlarge"}
