"""neuron-healthcheck as a process of its own."""

from __future__ import annotations

import subprocess
from typing import Protocol

from tests.harness.paths import ROOT

HEALTHCHECK = ROOT / "scripts" / "neuron-healthcheck"


class RunHealthcheck(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]: ...
