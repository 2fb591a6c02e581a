"""Counts go on when the daemon is restarted: nothing that a process did is lost, and nothing is counted twice."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


FLOP = 10**9
BUSY_WORKER = f"""
import time
from neurontools.runtime import CoresUnavailable, Reporter

reporter = None
while reporter is None:
    try:
        reporter = Reporter.attach()
    except CoresUnavailable:
        time.sleep(0.001)
model = reporter.load_model("m")
while True:
    with model.execution(flop={FLOP}):
        time.sleep(0.002)
"""


class Worker:
    """A process that executes as often as it is told; with another `code` it does what that says."""

    def __init__(self, socket: str, code: str = WORKER) -> None:
        environment = {**os.environ, "NEURONTOOLS_SOCKET": socket, "NEURON_RT_VISIBLE_CORES": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
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
    """A neuron-monitor, the sum of what its records say was completed, and what they say of each process."""

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
        self.reports: dict[int, list[dict[str, Any]]] = {}
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def read(self) -> int:
        """Reads the next record, if one comes soon; answers the sum of all."""
        if self._selector.select(0.05):
            assert self.process.stdout
            for runtime in json.loads(self.process.stdout.readline())["neuron_runtime_data"]:
                self.completed += runtime["report"]["execution_stats"]["execution_summary"]["completed"]
                self.reports.setdefault(runtime["pid"], []).append(runtime["report"])
            self.records += 1
        return self.completed

    def told_of(self, pid: int) -> int:
        """Reads the next record; answers how many have told what this process executed."""
        self.read()
        return sum(map(check, self.reports.get(pid, ())))


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "monitor.json"
    groups = [{"type": "execution_stats"}, {"type": "neuroncore_counters"}]
    path.write_text(json.dumps({"period": "50ms", "neuron_runtimes": [{"metrics": groups}]}))
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


def check(report: dict[str, Any]) -> bool:
    """Whether a record tells what a process executed, and then in one interval: FLOPS and executions fit together."""
    stats, cores = report["execution_stats"], report["neuroncore_counters"]
    if stats["error"] or cores["error"]:
        return False
    flops = cores["neuroncores_in_use"]["0"]["flops"]
    assert stats["period"] == cores["period"] > 0
    assert flops * cores["period"] / FLOP == pytest.approx(stats["execution_summary"]["completed"], abs=1e-6)
    return True


def test_what_is_in_a_record_is_of_one_interval(
    start_daemon: StartDaemon, configuration: Path, processes: list[subprocess.Popen[str]]
) -> None:
    """Also in the first after a restart of the daemon, and where a core changed hands within the interval."""
    daemon = start_daemon(*FLAGS)
    monitor = Monitor(daemon.socket, configuration)
    processes.append(monitor.process)
    wait_until(lambda: monitor.read() == 0 and monitor.records > 0)
    worker = Worker(daemon.socket, BUSY_WORKER)
    processes.append(worker.process)
    for _ in range(3):
        wait_until(lambda: monitor.told_of(worker.process.pid) >= 5)  # noqa: B023  (called at once)
        daemon.process.kill()
        daemon.process.wait()
        daemon = start_daemon(*FLAGS)
        told = monitor.told_of(worker.process.pid)
        wait_until(lambda: monitor.told_of(worker.process.pid) >= told + 5)  # noqa: B023
        following = Worker(daemon.socket, BUSY_WORKER)  # waits for the core, and has it within milliseconds
        processes.append(following.process)
        asking = daemon.snapshot().sequence
        wait_until(lambda: daemon.snapshot().sequence > asking + 10)  # noqa: B023
        worker.process.kill()
        worker = following
    wait_until(lambda: monitor.told_of(worker.process.pid) >= 5)


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
