"""neuron-ls as a process of its own."""

from __future__ import annotations

import subprocess
from typing import Protocol


class RunNeuronLs(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]: ...
