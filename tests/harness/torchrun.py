"""Two ranks under torchrun."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any


def torchrun(run_python: Callable[..., Any], script: str, *arguments: str, **environment: str) -> Any:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port))
    return run_python(*launcher, "-m", "neurontools.runtime", script, *arguments, NEURON_RT_NUM_CORES="", **environment)
