"""Counters of a training run under neuron-run, per step and worker. They do not depend on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neurontools.estimate.families import ModelFamily, family_of


@dataclass(frozen=True, slots=True)
class CountedRun:
    """The work per training step of the worker with the most FLOPs, and the largest HBM peak of all workers.

    Averages over the steady-state steps, which exclude evaluations; over all steps if there was no steady state.
    `flops_by_dtype` has torch's names of element types as keys. Per step, `executions` counts executed graphs,
    `tensors` their inputs and outputs, and `moved_bytes` the bytes of these tensors. `batch_samples` is the batch size
    of the loader; `samples` is larger if gradients are accumulated. These two are None without a loader of torch_xla.
    Weight, gradient and optimizer bytes are None before the first optimizer step.
    """

    worker_count: int
    steps_total: int
    samples: float | None
    batch_samples: int | None
    batches: float | None
    flops_by_dtype: Mapping[str, float]
    executions: float
    tensors: float
    moved_bytes: float
    collectives: float
    collective_bytes: float
    peak_bytes: int
    weight_bytes: int | None
    gradient_bytes: int | None
    optimizer_state_bytes: int | None
    graphs_compiled_total: int
    training_seconds: float | None
    wall_seconds: float | None
    family: ModelFamily = ModelFamily.OTHER

    @classmethod
    def from_summary(cls, document: Mapping[str, Any]) -> CountedRun:
        """Parses the output of `neuron-run --summary-json`.

        Raises EstimateError if the document is malformed, or has no training step or matrix multiplication.
        """
        ranks = parse_ranks(document)
        trained = [rank for rank in ranks if parse_number(rank, "steps_total")]
        if not trained:
            raise EstimateError(
                "no training step was seen, so there is nothing to estimate; run a few steps of the script"
            )
        most = max(trained, key=lambda rank: parse_number(rank, "flop_total"))
        steady = most.get("steady_state")
        counted = steady if isinstance(steady, dict) and parse_number(steady, "steps_total") else most
        flops = counted.get("flops_by_dtype")
        if not isinstance(flops, dict) or not any(flops.values()):
            raise EstimateError(
                "no matrix was multiplied on the device, so there is nothing to estimate; move the model to it"
            )
        steps = parse_number(counted, "steps_total")
        known_samples = counted.get("samples_total") is not None

        def a_step(name: str) -> float:
            return parse_number(counted, name) / steps

        return cls(
            worker_count=max(int(parse_number(document, "workers")), len(trained)),
            steps_total=int(parse_number(most, "steps_total")),
            samples=a_step("samples_total") if known_samples else None,
            batch_samples=most.get("batch_samples"),
            batches=a_step("batches_total") if counted.get("batches_total") else None,
            flops_by_dtype={str(dtype): float(count) / steps for dtype, count in flops.items() if count},
            executions=a_step("executions_total"),
            tensors=a_step("executed_tensors_total"),
            moved_bytes=a_step("moved_bytes"),
            collectives=a_step("collectives_total"),
            collective_bytes=a_step("collective_bytes"),
            peak_bytes=int(max(parse_number(rank, "hbm_peak_bytes") for rank in trained)),
            weight_bytes=most.get("weight_bytes"),
            gradient_bytes=most.get("gradient_bytes"),
            optimizer_state_bytes=most.get("optimizer_state_bytes"),
            graphs_compiled_total=int(parse_number(most, "graphs_compiled_total")),
            training_seconds=most.get("training_seconds"),
            wall_seconds=document.get("wall_seconds"),
            family=family_of(most.get("operators") or ()),
        )

    @property
    def flops(self) -> float:
        """FLOPs of one worker per step, over all element types."""
        return sum(self.flops_by_dtype.values())

    @property
    def batches_per_execution(self) -> float | None:
        """Batches per executed graph; None without a loader of torch_xla."""
        return None if self.batches is None else self.batches / self.executions

    @property
    def fixed_bytes(self) -> int | None:
        """HBM of weights, gradients and optimizer state, which the batch size doesn't change; None if unknown."""
        parts = (self.weight_bytes, self.gradient_bytes, self.optimizer_state_bytes)
        sizes = [part for part in parts if part is not None]
        return sum(sizes) if len(sizes) == len(parts) else None


def parse_ranks(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of all ranks in a summary. Raises EstimateError if there is no list of them."""
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise EstimateError(
            "this is not a summary of neuron-run: it has no list of ranks; write one with --summary-json"
        )
    return ranks


def parse_number(document: Mapping[str, Any], name: str) -> float:
    """Returns a number of a summary; 0 if it is missing or None. Raises EstimateError for anything else."""
    value = document.get(name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EstimateError(
            f"this is not a summary of neuron-run: {name} is not a number; write one with --summary-json"
        )
    return float(value)


class EstimateError(ValueError):
    """Input of an estimate is unusable. The message is one line: the input, the cause and the next step."""
