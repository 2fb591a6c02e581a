"""One NeuronCore of this process: its memory, its pending graph, its random numbers and what it has done."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from neurontools.runtime.tensors.graph import Graph
from neurontools.runtime.tensors.memory import CoreMemory


@dataclass(slots=True)
class CoreStatistics:
    """What one core did since the process began."""

    executions_total: int = 0
    busy_seconds: float = 0.0
    flops_total: int = 0
    numerical_errors_total: int = 0
    failed_executions_total: int = 0
    to_device_bytes: int = 0
    from_device_bytes: int = 0
    compilations_total: int = 0
    compile_seconds: float = 0.0
    collectives_total: int = 0
    collective_seconds: float = 0.0
    collective_bytes: int = 0


@dataclass(slots=True)
class Core:
    """A logical NeuronCore. `local_index` is the N of `xla:N`, `global_index` its number on the host."""

    local_index: int
    global_index: int
    memory: CoreMemory
    graph: Graph = field(default_factory=Graph)
    generator: torch.Generator = field(default_factory=torch.Generator)
    statistics: CoreStatistics = field(default_factory=CoreStatistics)
