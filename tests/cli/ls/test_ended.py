"""neuron-ls --ended, as a process against a real daemon."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os

import pytest

from neurontools.cli.ls.ended import age_seconds
from neurontools.client import Client
from neurontools.errors import UserError
from neurontools.rpc import neuron_pb2 as pb
from tests.harness.neuron_ls import RunNeuronLs
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    """A daemon that knows of two that let their cores go, of this process."""
    daemon = start_daemon()
    for tag, completed in (("=1+1", 5), ("second", 7)):
        attachment = Attachment(daemon)
        attachment.attach(core_count=2, tag=tag)
        executions = pb.ExecutionCounters(completed_total=completed, timed_out_total=1)
        attachment.report(pb.Report(measured_at_seconds=1.0, executions=executions))
        attachment.close()
    with Client(daemon.socket) as client:
        wait_until(lambda: len(client.ended().processes) == 2)
    return daemon


def test_people_read_tables(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    done = neuron_ls("--socket", daemon.socket, "--ended")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 ended processes since ")
    rows = [line for line in done.stdout.splitlines() if f" {os.getpid()} " in line]
    assert len(rows) >= 2
    assert all("let go" in row for row in rows[:2])
    by_user = done.stdout.partition("by user\n")[2].partition("by job\n")[0]
    assert f"| {getpass.getuser()} | 2 " in by_user
    assert "12" in by_user


def test_programs_read_json_and_csv(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    told = json.loads(neuron_ls("--socket", daemon.socket, "--ended", "--json").stdout)
    assert list(told) == ["schema_version", "since", "processes", "users", "jobs"]
    assert [process["tag"] for process in told["processes"]] == ["=1+1", "second"]
    assert [process["exit_status"] for process in told["processes"]] == [None, None]
    (total,) = told["users"]
    assert (total["executions_completed_total"], total["executions_failed_total"]) == (12, 2)
    done = neuron_ls("--socket", daemon.socket, "--ended", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["tag"] for row in rows] == ["'=1+1", "second"]  # no spreadsheet computes it
    assert [row["executions_completed_total"] for row in rows] == ["5", "7"]
    assert list(rows[0]) == list(told["processes"][0])


def test_a_user_and_an_age_choose(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    for chosen, count in ((getpass.getuser(), 2), (str(os.getuid()), 2), ("nobody-of-this-name", 0)):
        done = neuron_ls("--socket", daemon.socket, "--ended", "--user", chosen, "--since", "1d", "-j")
        assert len(json.loads(done.stdout)["processes"]) == count
    done = neuron_ls("--socket", daemon.socket, "--ended", "--user", "no\x1b[31mbody")
    assert done.stdout.startswith(r"no process of no\x1b[31mbody that held NeuronCores has ended since ")
    done = neuron_ls("--socket", daemon.socket, "--ended", "--since", "0s")
    assert done.stdout.startswith("no process that held NeuronCores has ended since ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--user", "me"), "--user is for --ended"),
        (("--ended", "--since", "soon\x1b[31m"), r"soon\x1b[31m is no time"),
        (("--ended", "--query", "index"), "--query"),
        (("--ended", "-d", "0"), "--device"),
        (("--ended", "--loop", "1"), "--loop"),
        (("--ended", "--format", "xml"), "--format"),
    ],
)
def test_what_cannot_be_meant_is_a_line(neuron_ls: RunNeuronLs, arguments: tuple[str, ...], said: str) -> None:
    done = neuron_ls(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_daemon_nobody_knows(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls("--ended")
    assert (done.returncode, done.stdout) == (12, "")
    assert "no monitor daemon answers" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86_400), ("2w", 1_209_600), ("7", 7)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert age_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "nan", "inf", "1e400", "1y", "١d", "9" * 30])
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--since"):
        age_seconds(text)
