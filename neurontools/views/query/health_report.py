"""The answer to `neuron-ls --health`: a line for each finding, or one that says that there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from neurontools.model import Snapshot
from neurontools.model.finding import Finding
from neurontools.model.health import Verdict, age_seconds, sentence, summary
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import ranges_text


def health_text(verdicts: Sequence[Verdict], snapshot: Snapshot) -> str:
    """For people and grep: "device 3: critical: REASON; ACTION"."""
    lines = [
        f"{_place(finding)}: {finding.severity.name.lower()}: {sentence(finding, snapshot)}; {finding.action}"
        for finding in _findings(verdicts)
    ]
    lines.append(summary(verdicts, snapshot))
    return "".join(escape_controls(line) + "\n" for line in lines)


def _findings(verdicts: Sequence[Verdict]) -> list[Finding]:
    """Each once, whatever the number of devices it is about, gravest first."""
    found = {finding.identity: finding for verdict in verdicts for finding in verdict.findings}
    return sorted(found.values(), key=lambda finding: (-finding.severity, finding.device_indices))


def _place(finding: Finding) -> str:
    indices = finding.device_indices
    return f"device {indices[0]}" if len(indices) == 1 else f"devices {ranges_text(indices)}"


def health_json(verdicts: Sequence[Verdict], snapshot: Snapshot) -> str:
    """The same as a JSON array, a device an element; null is not known."""
    answer = [
        {
            "device_index": verdict.device_index,
            "severity": verdict.severity_name,
            "healthy": verdict.is_healthy,
            "findings": [
                {
                    **asdict(finding),
                    "severity": finding.severity.name.lower(),
                    "age_seconds": round(age_seconds(finding, snapshot), 3),
                }
                for finding in verdict.findings
            ],
        }
        for verdict in verdicts
    ]
    return json_text(answer, indent=2) + "\n"
