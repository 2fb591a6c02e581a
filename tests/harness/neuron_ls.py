"""neuron-ls as a process of its own."""

from __future__ import annotations

from tests.harness.command import RunCommand

RunNeuronLs = RunCommand
