"""Counts go on when the daemon is restarted: nothing that a process did is lost, and nothing is counted twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness import python_process
from tests.harness.record_stream import RecordStream
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

FLAGS = ("--simulate", "trn1.2xlarge", "--interval", "0.05")
FLOP = 10**9
WORKER = """
import sys
from neurontools.runtime import Reporter

model = Reporter.attach().load_model("m")
for line in sys.stdin:
    for _ in range(int(line)):
        with model.execution(flop=1000):
            pass
    print(line, end="", flush=True)
"""
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

    def __init__(self, processes: ExitStack, socket: str, code: str = WORKER) -> None:
        self.process: subprocess.Popen[str] = python_process.popen(
            [sys.executable, "-c", code],
            loaded=python_process.MONITORS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NEURONTOOLS_SOCKET": socket, "NEURON_RT_VISIBLE_CORES": "0"},
            text=True,
        )
        processes.callback(self.process.communicate)
        processes.callback(self.process.kill)
        self.executions = 0

    def execute(self, count: int) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{count}\n"
        self.executions += count


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def monitor(processes: ExitStack, tmp_path: Path, daemon: RunningDaemon) -> RecordStream:
    """One that has written its first record."""
    return monitored(processes, tmp_path, daemon)


def monitored(processes: ExitStack, directory: Path, daemon: RunningDaemon) -> RecordStream:
    stream = RecordStream(directory, daemon.socket, "execution_stats", "neuroncore_counters", period="50ms")
    processes.enter_context(stream)
    wait_until(stream.records)
    return stream


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(*FLAGS)


def kill(daemon: RunningDaemon) -> None:
    daemon.process.kill()
    daemon.process.wait()


def test_the_sum_of_the_records_is_what_the_process_did(
    start_daemon: StartDaemon, daemon: RunningDaemon, monitor: RecordStream, processes: ExitStack, tmp_path: Path
) -> None:
    worker = Worker(processes, daemon.socket)
    worker.execute(40)
    wait_until(lambda: sum(monitor.completed()) == 40)
    kill(daemon)
    worker.execute(7)  # while there is no daemon
    daemon = start_daemon(*FLAGS)
    wait_until(lambda: sum(monitor.completed()) == 47)
    late = monitored(processes, tmp_path, daemon)
    worker.execute(20)
    wait_until(lambda: sum(monitor.completed()) == 67)
    wait_until(lambda: sum(late.completed()) == 20)
    kill(daemon)
    worker.execute(8)
    start_daemon(*FLAGS)
    wait_until(lambda: sum(monitor.completed()) == 75)
    wait_until(lambda: sum(late.completed()) == 28)
    count = len(monitor.records())
    wait_until(lambda: len(monitor.records()) > count + 5)
    assert sum(monitor.completed()) == 75
    worker.process.kill()
    wait_until(lambda: not monitor.records()[-1]["neuron_runtime_data"])


def is_told(report: dict[str, Any]) -> bool:
    """Whether a record tells what a process executed, and then in one interval: FLOPS and executions fit together."""
    stats, cores = report["execution_stats"], report["neuroncore_counters"]
    if stats["error"] or cores["error"]:
        return False
    flops = cores["neuroncores_in_use"]["0"]["flops"]
    assert stats["period"] == cores["period"] > 0
    assert flops * cores["period"] / FLOP == pytest.approx(stats["execution_summary"]["completed"], abs=1e-6)
    return True


@pytest.mark.slow
def test_what_is_in_a_record_is_of_one_interval(
    start_daemon: StartDaemon, daemon: RunningDaemon, monitor: RecordStream, processes: ExitStack
) -> None:
    """Also in the first after a restart of the daemon, and where a core changed hands within the interval."""

    def wait_until_told(worker: Worker, times: int) -> int:
        pid = worker.process.pid
        wait_until(lambda: sum(map(is_told, monitor.reports(pid))) >= times)
        return sum(map(is_told, monitor.reports(pid)))

    worker = Worker(processes, daemon.socket, BUSY_WORKER)
    for _ in range(2):
        told = wait_until_told(worker, 5)
        kill(daemon)
        daemon = start_daemon(*FLAGS)
        wait_until_told(worker, told + 5)
        following = Worker(processes, daemon.socket, BUSY_WORKER)  # waits for the core, and has it within milliseconds
        daemon.next_snapshot(10)
        worker.process.kill()
        worker = following
    wait_until_told(worker, 5)
