"""A neuron-monitor as a process, and what its records have told of processes so far."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.harness import python_process


class RecordStream:
    """A context with a neuron-monitor that writes records of these metric groups of all processes."""

    def __init__(self, directory: Path, socket: str, *groups: str, period: str) -> None:
        runtimes = [{"metrics": [{"type": group} for group in groups]}]
        self._directory = Path(tempfile.mkdtemp(dir=directory))
        configuration, records = self._directory / "monitor.json", self._directory / "records"
        configuration.write_text(json.dumps({"period": period, "neuron_runtimes": runtimes, "system_metrics": []}))
        with records.open("wb") as output:
            self.process: subprocess.Popen[bytes] = python_process.popen(
                [
                    *(sys.executable, "-m", "neurontools.cli.monitor.command"),
                    *("--socket", socket, "-c", str(configuration)),
                ],
                loaded=python_process.MONITORS,
                stdout=output,
            )
        self._output = records.open("rb")
        self._records: list[dict[str, Any]] = []

    def __enter__(self) -> RecordStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()

    def records(self) -> list[dict[str, Any]]:
        while line := self._output.readline():
            if not line.endswith(b"\n"):
                self._output.seek(-len(line), 1)
                break
            self._records.append(json.loads(line))
        return self._records

    def reports(self, pid: int | None = None) -> list[dict[str, Any]]:
        """What they told of this process, or of all."""
        reports = [data for record in self.records() for data in record["neuron_runtime_data"]]
        return [data["report"] for data in reports if pid in (None, data["pid"])]

    def completed(self) -> list[int]:
        """How many executions each report counts."""
        return [each["execution_stats"]["execution_summary"]["completed"] for each in self.reports()]
