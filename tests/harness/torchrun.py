"""Two ranks under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.ports import free_port


def torchrun(run_python: Callable[..., Any], script: str, *arguments: str, **environment: str) -> Any:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    return run_python(*launcher, "-m", "neurontools.runtime", script, *arguments, NEURON_RT_NUM_CORES="", **environment)
