"""What the environment asks of executions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from neurontools.runtime.execution.deadline import EXEC_TIMEOUT
from neurontools.runtime.programs.numerics import STOCHASTIC_SEED, stochastic_rounding

FAIL_ON_NAN = "NEURON_FAIL_ON_NAN"
EXTRACT_ONLY = "NEURON_EXTRACT_GRAPHS_ONLY"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the variables ask of executions. `stochastic` is the generator of random rounding, None when it is off.

    `extracts_only`: graphs are compiled into the cache and not executed, as neuron_parallel_compile asks.
    """

    fail_on_nan: bool
    timeout_seconds: float | None
    stochastic: torch.Generator | None
    extracts_only: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Policy:
        """Reads the variables; a time-out that is no number is none."""
        timeout = environment.get(EXEC_TIMEOUT, "")
        stochastic = None
        if stochastic_rounding(environment):
            stochastic = torch.Generator()
            seed = environment.get(STOCHASTIC_SEED, "")
            stochastic.manual_seed(int(seed) if seed.lstrip("-").isdigit() else 0)
        return cls(
            fail_on_nan=environment.get(FAIL_ON_NAN, "0") not in ("", "0", "false"),
            timeout_seconds=float(timeout) if timeout.isdigit() and int(timeout) else None,
            stochastic=stochastic,
            extracts_only=environment.get(EXTRACT_ONLY, "0") not in ("", "0", "false"),
        )
