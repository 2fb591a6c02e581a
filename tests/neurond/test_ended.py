"""What a daemon tells of processes that really ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.errors import UserError
from neurontools.model import EndedProcess
from neurontools.rpc import neuron_pb2 as pb
from tests.harness.paths import ATTACHED_CHILD
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

# It ends as its connection does: of who takes a second longer, on a busy machine, it is told that it let its cores go.
_HOLDER = """
import os, sys
from neurontools.runtime import Reporter
reporter = Reporter.attach()
print(flush=True)
os._exit(int(sys.stdin.readline() or 0))
"""


class Job:
    """A process that holds cores until it is told the code to end with."""

    def __init__(self, daemon: RunningDaemon, cores: int) -> None:
        environment = {"NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_NUM_CORES": str(cores), "PATH": "/usr/bin:/bin"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="ascii",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "\n"

    def end(self, code: int) -> None:
        self.process.communicate(f"{code}\n")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon()


def ended(daemon: RunningDaemon, pid: int) -> EndedProcess:
    with Client(daemon.socket) as client:
        return wait_until(lambda: next((each for each in client.ended().processes if each.pid == pid), None))


def test_how_processes_ended_is_known(daemon: RunningDaemon) -> None:
    well, badly, killed = Job(daemon, 1), Job(daemon, 2), Job(daemon, 4)
    well.end(0)
    badly.end(7)
    killed.kill()
    hows = [ended(daemon, job.process.pid).how for job in (well, badly, killed)]
    assert hows == ["ok", "exit 7", "signal 9"]
    assert ended(daemon, killed.process.pid).neuroncore_count == 4


def test_a_process_that_nobody_has_waited_for_has_ended_too(daemon: RunningDaemon) -> None:
    job = Job(daemon, 1)
    try:
        job.process.send_signal(signal.SIGKILL)  # and it stays a zombie: this process has not waited for it
        assert ended(daemon, job.process.pid).exit_status == -signal.SIGKILL
    finally:
        job.process.communicate()


def test_a_process_that_lets_its_cores_go_lives_on(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=2)
    attachment.close()
    assert ended(daemon, os.getpid()).how == "let go"


def test_what_a_process_reported_last_is_in_however_short_it_was(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    core = pb.ReportedCore(
        local_index=0, busy_seconds_total=0.25, flop_total=1000, memory=pb.DeviceMemory(tensors_bytes=12)
    )
    report = pb.Report(
        measured_at_seconds=1.0,
        cores=[core],
        executions=pb.ExecutionCounters(completed_total=3, timed_out_total=1),
        errors=pb.ErrorCounters(hardware_total=1),
    )
    attachment.report(report)
    attachment.close()
    told = ended(daemon, os.getpid())
    assert (told.busy_seconds_total, told.flop_total, told.peak_device_memory_bytes) == (0.25, 1000, 12)
    assert told.executions is not None
    assert (told.executions.completed_total, told.failed_executions_total, told.errors_total) == (3, 1, 1)


def test_the_peak_of_device_memory_outlives_what_was_freed(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    for number, used_bytes in enumerate((10, 500, 20), 1):
        core = pb.ReportedCore(local_index=0, memory=pb.DeviceMemory(tensors_bytes=used_bytes))
        attachment.report(pb.Report(measured_at_seconds=float(number), cores=[core]))
    attachment.close()
    assert ended(daemon, os.getpid()).peak_device_memory_bytes == 500


def test_who_only_watches_is_not_told_of(daemon: RunningDaemon) -> None:
    watching = subprocess.Popen(
        [sys.executable, str(ATTACHED_CHILD), daemon.socket, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert watching.stdout is not None
    watching.stdout.readline()
    watching.communicate()
    job = Job(daemon, 1)
    job.end(0)
    ended(daemon, job.process.pid)
    with Client(daemon.socket) as client:
        assert [each.pid for each in client.ended().processes] == [job.process.pid]


def test_snapshots_show_it_for_a_while_and_the_past_keeps_them(daemon: RunningDaemon) -> None:
    job = Job(daemon, 1)
    job.end(0)
    told = ended(daemon, job.process.pid)
    assert daemon.next_snapshot().ended == (told,)
    with Client(daemon.socket) as client:
        assert told in {each for snapshot in client.history() for each in snapshot.ended}


def test_a_daemon_that_ends_takes_nobody_for_ended(start_daemon: StartDaemon, tmp_path: Path) -> None:
    first = start_daemon()
    job = Job(first, 1)
    first.stop()
    second = start_daemon()
    again = wait_until(lambda: second.find(job.process.pid))  # its runtime attaches again
    wait_until(lambda: (second.find(job.process.pid) or again).counted_since_seconds)
    with Client(second.socket) as client:
        assert client.ended().processes == ()
    job.end(3)
    told = ended(second, job.process.pid)
    assert told.exit_status == 3
    with Client(second.socket) as client:
        assert told.began_at_unix_seconds < client.ended().known_since_unix_seconds


def test_a_time_that_none_is_is_refused(daemon: RunningDaemon) -> None:
    with Client(daemon.socket) as client, pytest.raises(UserError, match="since_unix_seconds"):
        client.ended(float("nan"))
