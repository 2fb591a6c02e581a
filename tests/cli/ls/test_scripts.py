"""neuron-ls for scripts, against a real daemon: queries, health, free cores, ended processes."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from neurontools.cli.ls.queries import parse_age
from neurontools.client import Client
from neurontools.rpc import neuron_pb2 as pb
from neurontools.util.errors import UserError
from tests.harness.command import RunCommand
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def mine(daemon: RunningDaemon) -> Iterator[Attachment]:
    """This process, which holds two cores."""
    attachment = Attachment(daemon)
    attachment.attach(core_count=2, tag="mine")
    wait_until(lambda: daemon.find(os.getpid()))
    yield attachment
    attachment.close()


def test_query(neuron_ls: RunCommand, daemon: RunningDaemon, mine: Attachment) -> None:
    done = neuron_ls("--socket", daemon.socket, "--query", "neuroncore.index,process.tag", "--format", "csv,noheader")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["0,mine", "1,mine", "2,-"]
    done = neuron_ls(
        "--socket", daemon.socket, "--query", "index,free", "--format", "json", "-d", "0000:10:1c.0,FFFFFFFF00000002"
    )
    assert json.loads(done.stdout) == [
        {"index": 0, "free_neuroncore_count": 0},
        {"index": 2, "free_neuroncore_count": 2},
    ]
    assert "neuroncore.utilization" in neuron_ls("--help-query").stdout


def test_the_object_has_the_instance_at_its_top(neuron_ls: RunCommand, daemon: RunningDaemon, mine: Attachment) -> None:
    done = neuron_ls("--socket", daemon.socket, "--output-format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert list(told) == ["instance_type", "instance_id", "neuron_devices"]
    of_instance = {name: told[name] for name in ("instance_type", "instance_id")}
    array = json.loads(neuron_ls("--socket", daemon.socket, "-j").stdout)
    named = ("-d", "ffffffff00000003,0000:10:1c.0")
    assert json.loads(neuron_ls("--socket", daemon.socket, "-j", *named).stdout) == [array[0], array[3]]
    assert [of_instance | device for device in told["neuron_devices"]] == array
    assert [process["pid"] for process in told["neuron_devices"][0]["neuron_processes"]] == [os.getpid()]
    done = neuron_ls("--socket", daemon.socket, "--output-format=json", "-d", "3")
    assert [device["neuron_device"] for device in json.loads(done.stdout)["neuron_devices"]] == [3]


def test_it_shows_itself_among_all_processes(neuron_ls: RunCommand, shared_daemon: RunningDaemon) -> None:
    for flags, shown in (("-j", set()), ("-ja", {os.getpid()})):
        devices = json.loads(neuron_ls(flags, "--socket", shared_daemon.socket).stdout)
        assert {process["pid"] for device in devices for process in device["neuron_processes"]} == shown
    wait_until(lambda: shared_daemon.find(os.getpid()) is None)


def test_free_cores_are_fit_for_the_runtime(neuron_ls: RunCommand, daemon: RunningDaemon, mine: Attachment) -> None:
    for count, answer in (("1", "2"), ("2", "2-3")):
        done = neuron_ls("--socket", daemon.socket, "--wait-free", count)
        assert (done.returncode, done.stdout, done.stderr) == (0, answer + "\n", "")
    done = neuron_ls("--socket", daemon.socket, "--wait-free", "32", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (124, "")
    assert done.stderr == (
        "neuron-ls: no 32 NeuronCores in a row became free in 0.2 s; neuron-ls shows who holds them\n"
    )


def test_it_waits_until_cores_are_free(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach()
    wait_until(lambda: daemon.find(os.getpid()))
    waiting = subprocess.Popen(
        [
            sys.executable,
            str(NEURON_LS),
            "--socket",
            daemon.socket,
            "--wait-free",
            "32",
            "--timeout",
            str(HANG_SECONDS),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: psutil.Process(waiting.pid).net_connections("unix"))  # it asks the daemon
    assert waiting.poll() is None
    attachment.close()
    assert waiting.communicate(timeout=HANG_SECONDS)[0] == "0-31\n"
    assert waiting.returncode == 0


def test_health(neuron_ls: RunCommand, daemon: RunningDaemon, mine: Attachment) -> None:
    at = ("--socket", daemon.socket)
    done = neuron_ls(*at, "--health")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all 16 devices are healthy\n", "")
    core = pb.ReportedCore(execution_started_at_unix_seconds=time.time() - 100)
    ended = threading.Event()

    def report() -> None:  # who falls silent is stale, and no longer stuck
        while not ended.wait(0.2):
            mine.report(pb.Report(measured_at_seconds=time.monotonic(), cores=[core]))

    reporting = threading.Thread(target=report)
    reporting.start()
    try:
        wait_until(lambda: daemon.snapshot().cores[0].execution_started_at_unix_seconds)
        done = neuron_ls(*at, "--health")
        assert (done.returncode, done.stderr) == (5, "")
        assert done.stdout.startswith("device 0: critical: NeuronCore 0: one execution of PID ")
        assert done.stdout.endswith("1 of 16 devices unhealthy\n")
        assert neuron_ls(*at, "--health", "-d", "1-15").returncode == 0
        found = json.loads(neuron_ls(*at, "--health", "-j").stdout)
        assert [verdict["device_index"] for verdict in found if not verdict["healthy"]] == [0]
        # Nobody is sent to a device that is stuck.
        assert neuron_ls(*at, "--wait-free", "1").stdout == "2\n"
    finally:
        ended.set()
        reporting.join()


def test_no_daemon(neuron_ls: RunCommand) -> None:
    assert neuron_ls("--health").returncode == 1
    done = neuron_ls("--simulate", "trn2.48xlarge", "--wait-free", "4", NEURON_LOGICAL_NC_CONFIG="1")
    assert (done.returncode, done.stdout) == (0, "0-3\n")


@pytest.fixture
def ended(start_daemon: StartDaemon) -> RunningDaemon:
    """A daemon that knows of two that let their cores go, of this process."""
    daemon = start_daemon()
    for tag, completed in (("=1+1", 5), ("second", 7)):
        attachment = Attachment(daemon)
        attachment.attach(core_count=2, tag=tag)
        executions = pb.ExecutionCounters(completed_total=completed, timed_out_total=1)
        attachment.report(pb.Report(measured_at_seconds=1.0, executions=executions))
        attachment.close()
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        wait_until(lambda: len(client.ended().processes) == 2)
    return daemon


def test_ended_processes(neuron_ls: RunCommand, ended: RunningDaemon) -> None:
    at = ("--socket", ended.socket, "--ended")
    done = neuron_ls(*at)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 ended processes since ")
    rows = [line for line in done.stdout.splitlines() if f" {os.getpid()} " in line]
    assert len(rows) >= 2
    assert all("let go" in row for row in rows[:2])
    by_user = done.stdout.partition("by user\n")[2].partition("by job\n")[0]
    assert f"| {getpass.getuser()} | 2 " in by_user
    assert "12" in by_user
    told = json.loads(neuron_ls(*at, "--json").stdout)
    assert list(told) == ["schema_version", "since", "processes", "users", "jobs"]
    assert [process["tag"] for process in told["processes"]] == ["=1+1", "second"]
    assert [process["exit_status"] for process in told["processes"]] == [None, None]
    (total,) = told["users"]
    assert (total["executions_completed_total"], total["executions_failed_total"]) == (12, 2)
    rows_of_csv = list(csv.DictReader(io.StringIO(neuron_ls(*at, "--format", "csv").stdout)))
    assert [row["tag"] for row in rows_of_csv] == ["'=1+1", "second"]  # no spreadsheet computes it
    assert [row["executions_completed_total"] for row in rows_of_csv] == ["5", "7"]
    assert list(rows_of_csv[0]) == list(told["processes"][0])
    for chosen, count in ((getpass.getuser(), 2), (str(os.getuid()), 2), ("nobody-of-this-name", 0)):
        done = neuron_ls(*at, "--user", chosen, "--since", "1d", "-j")
        assert len(json.loads(done.stdout)["processes"]) == count
    done = neuron_ls(*at, "--user", "no\x1b[31mbody")
    assert done.stdout.startswith(r"no process of no\x1b[31mbody that held NeuronCores has ended since ")
    done = neuron_ls(*at, "--since", "0s")
    assert done.stdout.startswith("no process that held NeuronCores has ended since ")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86_400), ("2w", 1_209_600), ("7", 7)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "d", "-1d", "nan", "inf", "1e400", "1y", "١d", "9" * 30])
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--since"):
        parse_age(text)
