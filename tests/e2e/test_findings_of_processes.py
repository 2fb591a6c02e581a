"""What real processes and a kubelet do becomes a finding, and every tool tells it: cores to be reset, orphaned ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import python_process
from tests.harness.kubelet import Kubelet, pod, reply_of
from tests.harness.paths import NEURON_LS, NEURON_TOP, PYTHONPATH
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
WORKS = """
import sys
from neurontools.runtime import Reporter

reporter = Reporter.attach()
model = reporter.load_model("m")
with model.execution(flop=1000):
    pass
print(flush=True)
sys.stdin.read()
"""


class Told:
    """A daemon with metrics, and what is told of one kind of finding."""

    def __init__(self, start: StartDaemon, *flags: str) -> None:
        self.port = free_port()
        self.daemon: RunningDaemon = start(
            *("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{self.port}", *flags)
        )

    def has(self, kind: str) -> bool:
        judged = self.daemon.snapshot().health
        assert judged is not None
        return any(finding.kind == kind for finding in judged.findings)

    def by_ls(self, kind: str) -> tuple[list[tuple[int, str]], list[str]]:
        """The devices and reasons in the JSON of `neuron-ls --health`, and the lines of its text."""
        document = json.loads(self._run(NEURON_LS, "--health", "-j"))
        reasons = [
            (each["device_index"], finding["reason"])
            for each in document
            for finding in each["findings"]
            if finding["kind"] == kind
        ]
        lines = self._run(NEURON_LS, "--health").splitlines()[:-1]
        return reasons, lines

    def by_top(self, kind: str) -> list[tuple[int, str]]:
        document = json.loads(self._run(NEURON_TOP, "--json"))
        return [
            (each["neuron_device"], finding["reason"])
            for each in document["devices"]
            for finding in each["findings"]
            if finding["kind"] == kind
        ]

    def by_metrics(self, kind: str) -> list[tuple[str, str, str]]:
        """Severity, devices and reason."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            metrics = reply.read().decode()
        found = []
        for labels in re.findall(r"^neurontools_finding_seconds\{(.*)\} ", metrics, re.MULTILINE):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["finding"] == kind:
                found.append((label["severity"], label["neuron_devices"], label["reason"]))
        return found

    def errors(self, error_type: str) -> float:
        """Errors of executions of the host, of this type."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            metrics = reply.read().decode()
        series = f'neurontools_execution_errors_total{{error_type="{error_type}"}} '
        (line,) = [line for line in metrics.splitlines() if line.startswith(series)]
        return float(line.removeprefix(series))

    def _run(self, program: Path, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, str(program), "--socket", self.daemon.socket, *arguments],
            env=os.environ | {"PYTHONPATH": PYTHONPATH, "COLUMNS": "400"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        ).stdout


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run_on_core_1(daemon: RunningDaemon, code: str) -> subprocess.Popen[bytes]:
    return python_process.popen(
        [sys.executable, "-c", code],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_VISIBLE_CORES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("interval_seconds", [0.05, 3.0], ids=["over several ticks", "between two ticks"])
def test_a_core_on_which_one_process_after_the_other_fails_needs_a_reset(
    start_daemon: StartDaemon, processes: ExitStack, interval_seconds: float
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
    reasons, lines = told.by_ls("needs_reset")
    assert reasons == told.by_top("needs_reset") == [(0, reason)]
    assert lines[0].startswith(f"device 0: critical: {reason}")
    assert "restarting the job does not help" in lines[0]
    assert told.by_metrics("needs_reset") == [("critical", "0", reason)]
    assert f"device 0: critical: {reason}" in told.daemon.log
    works = run_on_core_1(told.daemon, WORKS)
    processes.callback(end, works)
    assert works.stdout is not None
    assert works.stdout.readline() == b"\n"
    wait_until(lambda: not told.has("needs_reset"))


def test_an_error_with_which_a_process_ends_is_counted_for_its_host(start_daemon: StartDaemon) -> None:
    told = Told(start_daemon, "--interval", "3")
    assert told.errors("model") == 0

    def is_counted() -> bool:
        """A process that can't tell it in time, on a busy machine, is followed by another."""
        run_on_core_1(told.daemon, ERRS).communicate()
        return told.errors("model") > 0

    wait_until(is_counted)
    assert told.errors("runtime") == 0


def test_a_core_that_a_pod_was_given_and_nobody_holds_is_orphaned(
    start_daemon: StartDaemon, socket_directory: Path, tmp_path: Path, processes: ExitStack
) -> None:
    kubelet = Kubelet(
        socket_directory / "kubelet.sock",
        reply_of(pod("held", "ml", "main", neuroncore=["0"]), pod("left", "ml", "main", neuroncore=["1"])),
    )
    kubelet.start()
    processes.callback(kubelet.stop)
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(
        f'[kubernetes]\npod_resources_socket = "{kubelet.path}"\n[health]\nidle_seconds = 0.5\n', "utf-8"
    )
    told = Told(start_daemon, "--interval", "0.05", "--config", str(configuration))
    processes.callback(end, holder(told.daemon.socket, NEURON_RT_VISIBLE_CORES="0"))
    wait_until(lambda: told.has("orphaned"))
    reason = "the kubelet has given NeuronCore 1 to pod ml/left, container main, where nobody holds it"

    def is_alone() -> bool:
        """The one that is held may have been orphaned until it was."""
        return told.by_ls("orphaned")[0] == [(0, reason)]

    wait_until(is_alone)
    lines = told.by_ls("orphaned")[1]
    assert any(line.startswith(f"device 0: notice: {reason}") for line in lines), lines
    assert any("kubectl -n ml delete pod left" in line for line in lines), lines
    assert told.by_top("orphaned") == [(0, reason)]
    assert told.by_metrics("orphaned") == [("notice", "0", reason)]
    late = holder(told.daemon.socket, NEURON_RT_VISIBLE_CORES="1")
    processes.callback(end, late)
    wait_until(lambda: not told.has("orphaned"))
    end(late)
    wait_until(lambda: told.has("orphaned"))
    kubelet.reply = reply_of(pod("held", "ml", "main", neuroncore=["0"]))
    wait_until(lambda: not told.has("orphaned"))
