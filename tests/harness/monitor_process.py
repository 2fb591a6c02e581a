"""neuron-monitor as a process: what starts it, ends it and reads its records."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Protocol

from tests.harness.waiting import HANG_SECONDS

COMMAND = [sys.executable, "-m", "neurontools.cli.monitor.command"]
MOST_RECORDS = 200  # rather than waiting without end
LOADED = ("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.05", "--load-neuroncores", "3")
FAST = {
    "period": "100ms",
    "neuron_runtimes": [
        {
            "tag_filter": ".*",
            "metrics": [
                {"type": "neuroncore_counters"},
                {"type": "memory_used"},
                {"type": "neuron_runtime_vcpu_usage"},
                {"type": "execution_stats"},
            ],
        }
    ],
    "system_metrics": [
        {"type": "vcpu_usage"},
        {"type": "memory_info"},
        {"type": "neuron_hw_counters", "period": "200ms"},
    ],
}


class Start(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> subprocess.Popen[str]: ...


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, told = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, out, told


def line_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith("\n"), process.stderr.read() if process.stderr else ""
    return json.loads(line)
