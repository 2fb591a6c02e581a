"""neuron-ls for scripts, as a process against a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.harness.neuron_ls import RunNeuronLs
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


def test_query(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=2, tag="mine")
    done = neuron_ls("--socket", daemon.socket, "--query", "neuroncore.index,process.tag", "--format", "csv,noheader")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["0,mine", "1,mine", "2,-"]
    done = neuron_ls("--socket", daemon.socket, "--query", "index,free", "--format", "json", "-d", "0000:10:1c.0,2")
    assert json.loads(done.stdout) == [
        {"index": 0, "free_neuroncore_count": 0},
        {"index": 2, "free_neuroncore_count": 2},
    ]
    attachment.close()


def test_the_object_has_the_instance_at_its_top(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=2, tag="mine")
    done = neuron_ls("--socket", daemon.socket, "--output-format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert list(told) == ["instance_type", "instance_id", "neuron_devices"]
    of_instance = {name: told[name] for name in ("instance_type", "instance_id")}
    array = json.loads(neuron_ls("--socket", daemon.socket, "-j").stdout)
    assert [of_instance | device for device in told["neuron_devices"]] == array
    assert [process["pid"] for process in told["neuron_devices"][0]["neuron_processes"]] == [os.getpid()]
    done = neuron_ls("--socket", daemon.socket, "--output-format=json", "-d", "3")
    assert [device["neuron_device"] for device in json.loads(done.stdout)["neuron_devices"]] == [3]
    attachment.close()


def test_free_cores_are_fit_for_the_runtime(neuron_ls: RunNeuronLs, daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=1)
    asked = [("1", "1"), ("2", "2-3"), ("32", "")]
    for count, answer in asked[:2]:
        done = neuron_ls("--socket", daemon.socket, "--wait-free", count)
        assert (done.returncode, done.stdout, done.stderr) == (0, answer + "\n", "")
    done = neuron_ls("--socket", daemon.socket, "--wait-free", "32", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (124, "")
    assert done.stderr == (
        "neuron-ls: no 32 NeuronCores in a row became free in 0.2 s; neuron-ls shows who holds them\n"
    )
    attachment.close()


def test_it_waits_until_cores_are_free(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach()
    waiting = subprocess.Popen(
        [sys.executable, str(NEURON_LS), "--socket", daemon.socket, "--wait-free", "32", "--timeout", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)
    attachment.close()
    assert waiting.communicate(timeout=HANG_SECONDS)[0] == "0-31\n"
    assert waiting.returncode == 0


def test_health(neuron_ls: RunNeuronLs, start_daemon: StartDaemon, request: pytest.FixtureRequest) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")
    done = neuron_ls("--socket", daemon.socket, "--health")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all 16 devices are healthy\n", "")
    from neurontools.rpc import neuron_pb2

    attachment = Attachment(daemon)
    attachment.attach(core_count=2)
    core = neuron_pb2.ReportedCore(execution_started_at_unix_seconds=time.time() - 100)
    ended = threading.Event()

    def report() -> None:  # who falls silent is stale, and no longer stuck
        while not ended.wait(0.2):
            attachment.report(neuron_pb2.Report(measured_at_seconds=time.monotonic(), cores=[core]))

    reporting = threading.Thread(target=report)
    reporting.start()
    request.addfinalizer(reporting.join)
    request.addfinalizer(ended.set)
    wait_until(lambda: daemon.snapshot().cores[0].execution_started_at_unix_seconds)
    done = neuron_ls("--socket", daemon.socket, "--health")
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.startswith("device 0: critical: NeuronCore 0: one execution of PID ")
    assert done.stdout.endswith("1 of 16 devices unhealthy\n")
    assert neuron_ls("--socket", daemon.socket, "--health", "-d", "1-15").returncode == 0
    found = json.loads(neuron_ls("--socket", daemon.socket, "--health", "-j").stdout)
    assert [verdict["device_index"] for verdict in found if not verdict["healthy"]] == [0]
    # Nobody is sent to a device that is stuck.
    assert neuron_ls("--socket", daemon.socket, "--wait-free", "1").stdout == "2\n"
    ended.set()
    reporting.join()
    attachment.close()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--query", "index", "--health"], 2, "--query and --health exclude each other; give one of them"),
        (["--format", "csv"], 2, "--format is for --query; leave it out"),
        (["--timeout", "1"], 2, "--timeout is for --wait-free; leave it out"),
        (["--query", "nope"], 2, "--query: nope is no field"),
        (["--wait-free", "0"], 2, "--wait-free: '0' is no number of NeuronCores"),
        (["--wait-free", "33"], 2, "--wait-free: this host has 32 NeuronCores; 33 will never be free"),
        (["--wait-free", "1", "--timeout", "soon"], 2, "--timeout: 'soon' is no number of seconds"),
        (["--wait-free", "1", "--timeout", "nan"], 2, "--timeout: 'nan' is no number of seconds"),
        (["--output-format", "yaml"], 2, "--output-format: 'yaml' is no format; give json, or leave it out"),
        (["--output-format", "json", "-j"], 2, "--json-output and --output-format exclude each other"),
        (["--output-format", "json", "--health"], 2, "--health and --output-format exclude each other"),
        (["--output-format", "json", "-d", "99"], 6, "no device 99 on this host; it has devices 0 to 15"),
        (["--query", "index", "-d", "99"], 6, "no device 99 on this host; it has devices 0 to 15"),
        (["--query", "index", "-d", "0000:ff:1c.0"], 6, "no device at 0000:ff:1c.0 on this host"),
    ],
)
def test_wrong_questions(
    neuron_ls: RunNeuronLs, shared_daemon: RunningDaemon, arguments: list[str], code: int, text: str
) -> None:
    done = neuron_ls("--socket", shared_daemon.socket, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"neuron-ls: {text}")
    assert done.stderr.count("\n") == 1


def test_help_query_and_no_daemon(neuron_ls: RunNeuronLs) -> None:
    assert "neuroncore.utilization" in neuron_ls("--help-query").stdout
    assert neuron_ls("--socket", "/nonexistent.sock", "--health").returncode == 12
    assert neuron_ls("--health").returncode == 1
    done = neuron_ls("--simulate", "trn2.48xlarge", "--wait-free", "4", NEURON_LOGICAL_NC_CONFIG="1")
    assert (done.returncode, done.stdout) == (0, "0-3\n")
