"""Counts go on when the daemon is restarted: nothing that a process did is lost, and nothing is counted twice."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

FLAGS = ("--simulate", "trn1.2xlarge", "--interval", "0.05")
WORKER = """
import sys
from neurontools.runtime import Reporter

reporter = Reporter.attach()
model = reporter.load_model("m")
for line in sys.stdin:
    for _ in range(int(line)):
        with model.execution(flop=1000):
            pass
    print(line, end="", flush=True)
"""


class Worker:
    """A process that executes as often as it is told."""

    def __init__(self, socket: str) -> None:
        environment = {**os.environ, "NEURONTOOLS_SOCKET": socket, "NEURON_RT_NUM_CORES": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.executions = 0

    def execute(self, count: int) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{count}\n"
        self.executions += count


class Monitor:
    """A neuron-monitor, and the sum of what its records say was completed."""

    def __init__(self, socket: str, configuration: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "neurontools.cli.monitor.command",
            "--socket",
            socket,
            "-c",
            str(configuration),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.completed = self.records = 0
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def read(self) -> int:
        """Reads the next record, if one comes soon; answers the sum of all."""
        if self._selector.select(0.05):
            assert self.process.stdout
            for runtime in json.loads(self.process.stdout.readline())["neuron_runtime_data"]:
                self.completed += runtime["report"]["execution_stats"]["execution_summary"]["completed"]
            self.records += 1
        return self.completed


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"period": "50ms", "neuron_runtimes": [{"metrics": [{"type": "execution_stats"}]}]}))
    return path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_the_sum_of_the_records_is_what_the_process_did(
    start_daemon: StartDaemon, configuration: Path, processes: list[subprocess.Popen[str]]
) -> None:
    daemon = start_daemon(*FLAGS)
    monitor = Monitor(daemon.socket, configuration)
    processes.append(monitor.process)
    wait_until(lambda: monitor.read() == 0 and monitor.records > 0)
    worker = Worker(daemon.socket)
    processes.append(worker.process)
    worker.execute(40)
    wait_until(lambda: monitor.read() == worker.executions)
    late = monitor
    for restart in range(3):
        daemon.process.kill()
        daemon.process.wait()
        worker.execute(7 + restart)  # while there is no daemon
        daemon = start_daemon(*FLAGS)
        wait_until(lambda: monitor.read() == worker.executions)
        worker.execute(20)
        wait_until(lambda: monitor.read() == worker.executions)
        if restart == 0:
            late = Monitor(daemon.socket, configuration)
            processes.append(late.process)
            wait_until(lambda: late.read() == 0 and late.records > 0)  # noqa: B023  (called at once)
            before_late = worker.executions
        wait_until(lambda: late.read() == worker.executions - before_late)  # noqa: B023
    records = monitor.records
    wait_until(lambda: monitor.read() == worker.executions and monitor.records > records + 5)


def test_a_core_counts_what_this_daemon_saw_of_a_process_that_is_older(
    start_daemon: StartDaemon, processes: list[subprocess.Popen[str]]
) -> None:
    def executions(daemon: RunningDaemon) -> tuple[int | None, int | None]:
        process = daemon.find(worker.process.pid)
        core = daemon.snapshot().cores[0]
        done = process.executions.completed_total if process and process.executions else None
        return done, core.executions_total

    daemon = start_daemon(*FLAGS)
    worker = Worker(daemon.socket)
    processes.append(worker.process)
    worker.execute(30)
    wait_until(lambda: executions(daemon) == (30, 30))
    daemon.process.kill()
    daemon.process.wait()
    daemon = start_daemon(*FLAGS)
    wait_until(lambda: executions(daemon) == (30, 0))
    worker.execute(5)
    wait_until(lambda: executions(daemon) == (35, 5))
