"""What real processes do becomes a finding, and every tool tells it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from neurontools.cli.ls.command import main as neuron_ls
from neurontools.cli.top.command import main as neuron_top
from tests.harness import python_process
from tests.harness.command import call_main
from tests.harness.ports import free_port
from tests.harness.reporting_process import PATIENT, end, holder
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

FAILS = f"""{PATIENT}
from neurontools.runtime import ErrorKind, Outcome, Reporter

reporter = Reporter.attach()
model = reporter.load_model("m")
model.end(model.begin(), outcome=Outcome.COMPLETED_WITH_ERR)
reporter.error(ErrorKind.HARDWARE)
raise RuntimeError("NRT_EXEC_HW_ERR_DMA_ABORT(1203)")
"""
ERRS = """
from neurontools.runtime import ErrorKind, Reporter

reporter = Reporter.attach()
reporter.error(ErrorKind.MODEL)
raise RuntimeError("NRT_EXEC_OOB(1006)")
"""
WORKS = 'with r.load_model("m").execution(flop=1000): pass'


class Told:
    """A daemon with metrics, and what is told of one kind of finding."""

    def __init__(self, start: StartDaemon, *flags: str) -> None:
        self.port = free_port()
        self.daemon: RunningDaemon = start(
            *("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{self.port}", *flags)
        )

    def has(self, kind: str) -> bool:
        return bool(self.daemon.findings(kind))

    def by_ls(self, kind: str) -> list[tuple[int, str]]:
        """The devices and reasons in the JSON of `neuron-ls --health`."""
        return self._in_json(kind, "device_index", json.loads(self._run(neuron_ls, "--health", "-j")))

    def lines(self) -> list[str]:
        """Those of `neuron-ls --health`, without the last."""
        return self._run(neuron_ls, "--health").splitlines()[:-1]

    def by_top(self, kind: str) -> list[tuple[int, str]]:
        return self._in_json(kind, "neuron_device", json.loads(self._run(neuron_top, "--json"))["devices"])

    def by_metrics(self, kind: str) -> list[tuple[str, str, str]]:
        """Severity, devices and reason."""
        found = []
        for labels in re.findall(r"^neurontools_finding_seconds\{(.*)\} ", self._metrics(), re.MULTILINE):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["finding"] == kind:
                found.append((label["severity"], label["neuron_devices"], label["reason"]))
        return found

    def errors(self, error_type: str) -> float:
        """Errors of executions of the host, of this type."""
        series = f'neurontools_execution_errors_total{{error_type="{error_type}"}} '
        (line,) = [line for line in self._metrics().splitlines() if line.startswith(series)]
        return float(line.removeprefix(series))

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            text: str = reply.read().decode()
        return text

    def _run(self, main: Callable[[], object], *arguments: str) -> str:
        return call_main(main, "--socket", self.daemon.socket, *arguments, COLUMNS="400").stdout

    @staticmethod
    def _in_json(kind: str, index: str, devices: list[dict[str, Any]]) -> list[tuple[int, str]]:
        return [
            (each[index], finding["reason"])
            for each in devices
            for finding in each["findings"]
            if finding["kind"] == kind
        ]


def run_on_core_1(daemon: RunningDaemon, code: str) -> subprocess.Popen[bytes]:
    return python_process.popen(
        [sys.executable, "-c", code],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_VISIBLE_CORES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    "interval_seconds",
    [pytest.param(0.05, id="over several ticks"), pytest.param(3.0, id="between two ticks", marks=pytest.mark.slow)],
)
def test_a_core_on_which_one_process_after_the_other_fails_needs_a_reset(
    start_daemon: StartDaemon, interval_seconds: float
) -> None:
    """They end as soon as they have failed, as scripts do: most of them are in no snapshot of a tick."""
    told = Told(start_daemon, "--interval", str(interval_seconds))
    pids = []
    for _ in range(2):
        assert not told.has("needs_reset")
        failing = run_on_core_1(told.daemon, FAILS)
        _, errors = failing.communicate()
        assert b"NRT_EXEC_HW_ERR_DMA_ABORT" in errors
        pids.append(failing.pid)
        wait_until(lambda: told.daemon.find(failing.pid) is None)  # noqa: B023  (called at once)
    wait_until(lambda: told.has("needs_reset"))
    reason = f"NeuronCore 1 has failed for 2 processes in a row (PID {pids[0]}, {pids[1]})"
    assert told.by_ls("needs_reset") == told.by_top("needs_reset") == [(0, reason)]
    [line] = [line for line in told.lines() if line.startswith(f"device 0: critical: {reason}")]
    assert "restarting the job does not help" in line
    assert told.by_metrics("needs_reset") == [("critical", "0", reason)]
    assert f"device 0: critical: {reason}" in told.daemon.log
    works = holder(told.daemon.socket, WORKS, NEURON_RT_VISIBLE_CORES="1")
    wait_until(lambda: not told.has("needs_reset"))
    end(works)


def test_an_error_with_which_a_process_ends_is_counted_for_its_host(start_daemon: StartDaemon) -> None:
    told = Told(start_daemon, "--interval", "3")
    assert told.errors("model") == 0

    def is_counted() -> bool:
        """A process that can't tell it in time, on a busy machine, is followed by another."""
        run_on_core_1(told.daemon, ERRS).communicate()
        return told.errors("model") > 0

    wait_until(is_counted)
    assert told.errors("runtime") == 0
