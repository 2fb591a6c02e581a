"""neuron-healthcheck as a process of its own."""

from __future__ import annotations

from tests.harness.command import RunCommand
from tests.harness.paths import ROOT

HEALTHCHECK = ROOT / "scripts" / "neuron-healthcheck"
RunHealthcheck = RunCommand
