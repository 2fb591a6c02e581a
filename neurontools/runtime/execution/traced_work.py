"""The counted work of each traced model of this process, for estimates on other instance types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neurontools.runtime.execution.work import ExecutionWork

_MOST_MODELS = 256


@dataclass(slots=True)
class TracedModelWork:
    """One traced model with fixed shapes: the work and memory of an execution on one core, and its executions.

    `batch_samples` is dimension 0 of the first input. `cores_per_execution` is above 1 for a model with several ranks.
    `moved_bytes` are weights, inputs and outputs in the type in which they are multiplied. `padded_samples` counts the
    rows that dynamic batching added. `activation_bytes` are inputs, outputs and temporaries. Callers hold the lock of
    the runtime.
    """

    name: str
    batch_samples: int
    work: ExecutionWork
    moved_bytes: int
    weight_bytes: int
    code_bytes: int
    activation_bytes: int
    operators: list[str]
    core_indices: set[int] = field(default_factory=set)
    cores_per_execution: int = 1
    executions_total: int = 0
    padded_samples: int = 0

    def document(self) -> dict[str, Any]:
        """Returns the work as an entry of the summary."""
        return {
            "name": self.name,
            "batch_samples": self.batch_samples,
            "executions_total": self.executions_total,
            "padded_samples": self.padded_samples,
            "cores_per_execution": self.cores_per_execution,
            "cores": sorted(self.core_indices),
            "flops_by_dtype": dict(self.work.flops_by_dtype),
            "executed_tensors": self.work.tensors_total,
            "moved_bytes": self.moved_bytes,
            "weight_bytes": self.weight_bytes,
            "code_bytes": self.code_bytes,
            "activation_bytes": self.activation_bytes,
            "operators": self.operators,
        }


class TracedModelWorks:
    """The work of traced models by name and graph; those beyond the first 256 are left out."""

    def __init__(self) -> None:
        self._works: dict[tuple[str, str], TracedModelWork] = {}

    def register(self, loaded: TracedModelWork, graph: str) -> TracedModelWork:
        """Returns the counters of a model that is loaded onto a core; all its cores and copies share them."""
        key = (loaded.name, graph)
        if key in self._works or len(self._works) < _MOST_MODELS:
            known = self._works.setdefault(key, loaded)
            known.core_indices |= loaded.core_indices
            return known
        return loaded

    def documents(self) -> list[dict[str, Any]]:
        """Returns an entry of the summary for each model that was executed."""
        return [each.document() for each in list(self._works.values()) if each.executions_total]


traced_model_works = TracedModelWorks()
