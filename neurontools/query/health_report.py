"""The answer to `neuron-ls --health`: a line for each finding, or one that says that there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from neurontools.health import Verdict
from neurontools.text.json_text import json_text
from neurontools.text.terminal import visible


def health_text(verdicts: Sequence[Verdict]) -> str:
    """For people and grep: "device 3: critical: REASON; ACTION"."""
    lines = [
        f"device {verdict.device_index}: {finding.severity.name.lower()}: {finding.reason}; {finding.action}"
        for verdict in verdicts
        for finding in verdict.findings
    ]
    unhealthy = sum(not verdict.is_healthy for verdict in verdicts)
    count = len(verdicts)
    devices = "1 device is" if count == 1 else f"all {count} devices are"
    lines.append(f"{unhealthy} of {count} devices unhealthy" if unhealthy else f"{devices} healthy")
    return "".join(visible(line) + "\n" for line in lines)


def health_json(verdicts: Sequence[Verdict]) -> str:
    """The same as a JSON array, a device an element."""
    answer = [
        {
            "device_index": verdict.device_index,
            "severity": verdict.severity.name.lower(),
            "healthy": verdict.is_healthy,
            "findings": [
                {**asdict(finding), "kind": finding.kind.value, "severity": finding.severity.name.lower()}
                for finding in verdict.findings
            ],
        }
        for verdict in verdicts
    ]
    return json_text(answer, indent=2) + "\n"
