"""neuron-fault as a process: what it prints, and that rubbish injects nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.faults.kinds import KINDS
from tests.harness.running_daemon import RunningDaemon, StartDaemon

RunNeuronFault = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def neuron_fault(clean_environment: dict[str, str]) -> RunNeuronFault:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "neurontools.cli.fault.command", *arguments]
        return subprocess.run(command, env=clean_environment, capture_output=True, text=True, check=False)

    return run


def test_what_is_injected_is_listed_and_healed(neuron_fault: RunNeuronFault, daemon: RunningDaemon) -> None:
    at = ("--socket", daemon.socket)
    assert neuron_fault("list", *at).stdout == "no fault is there\n"
    done = neuron_fault("inject", "hbm-uncorrectable", "--device", "3", "--after-executions", "50", *at)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "fault 1: hbm-uncorrectable device 3, after 50 executions, waits\n"
    done = neuron_fault("inject", "ecc-corrected", "-d", "0", "--amount", "12", "--for=3600", "-j", *at)
    (document,) = json.loads(done.stdout)
    assert (document["number"], document["amount"], document["state"]) == (2, 12, "holds")
    listed = neuron_fault("list", *at).stdout.splitlines()
    assert listed[0].split() == ["FAULT", "KIND", "WHERE", "WHEN", "STATE", "MET"]
    assert [line.split()[0] for line in listed[1:]] == ["1", "2"]
    assert neuron_fault("heal", "2", *at).stdout == "healed 1 fault\n"
    assert neuron_fault("heal", *at).stdout == "healed 1 fault\n"
    assert json.loads(neuron_fault("list", "--json", *at).stdout) == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        ((), 2, "say what to do"),
        (("explode",), 2, "explode is none of inject, list, heal, kinds, plan"),
        (("inject",), 2, "inject needs one kind of fault"),
        (("inject", "dma-abort", "hang-compute", "--device", "0"), 2, "inject needs one kind"),
        (("inject", "dma-abrt", "--device", "0"), 2, "did you mean dma-abort?"),
        (("inject", "dma-abort\x1b[2J", "--device", "0"), 2, "is no kind of fault"),
        (("inject", "dma-abort"), 2, "give one of a device, a NeuronCore and a process"),
        (("inject", "dma-abort", "--device", "0", "--core", "1"), 2, "exclude each other"),
        (("inject", "dma-abort", "--device", "-1"), 2, "--device needs a value"),
        (("inject", "dma-abort", "--device", "²"), 2, "is no device"),
        (("inject", "dma-abort", "--device", "9" * 40), 2, "is no device"),
        (("inject", "dma-abort", "--device", "0", "--after", "soon"), 2, "soon is no number"),
        (("inject", "dma-abort", "--device", "0", "--for", "nan"), 2, "nan s is no duration"),
        (("inject", "dma-abort", "--device", "0", "--probability", "2"), 2, "2 is no probability"),
        (("inject", "dma-abort", "--device", "0", "--after", "1", "--after-executions", "1"), 2, "exclude each other"),
        (("inject", "dma-abort", "--device", "0", "--frobnicate"), 1, "unknown flag"),
        (("inject", "dma-abort", "--device", "999"), 6, "no device 999"),
        (("inject", "dma-abort", "--pid", "1"), 6, "PID 1 holds no NeuronCores"),
        (("heal", "x"), 2, "x is no number of a fault"),
        (("heal", "5"), 6, "there is no fault 5"),
        (("list", "--device", "0"), 2, "--device is not for list"),
    ],
)
def test_rubbish_is_one_line_and_injects_nothing(
    neuron_fault: RunNeuronFault,
    shared_daemon: RunningDaemon,
    arguments: tuple[str, ...],
    exit_code: int,
    said: str,
) -> None:
    done = neuron_fault(*arguments, *(("--socket", shared_daemon.socket) if arguments else ()))
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()
    assert shared_daemon.snapshot().injected_faults == ()


def test_without_a_daemon_it_says_how_to_start_one(neuron_fault: RunNeuronFault) -> None:
    done = neuron_fault("list")
    assert (done.returncode, done.stdout) == (12, "")
    assert "start one with" in done.stderr


def test_all_kinds_are_documented_by_the_command(neuron_fault: RunNeuronFault) -> None:
    lines = neuron_fault("kinds").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(KINDS)
    documents = json.loads(neuron_fault("kinds", "--json").stdout)
    assert [document["kind"] for document in documents] == list(KINDS)


def test_a_plan_is_told_and_played(neuron_fault: RunNeuronFault, daemon: RunningDaemon, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("seed = 3\nduration_seconds = 3600\nmean_seconds_between_faults = 300\nfor_seconds = 60\n")
    at = ("--socket", daemon.socket)
    told = neuron_fault("plan", str(plan), "--dry-run", *at)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines()[0].split() == ["AT", "HOST", "DEVICE", "KIND"]
    assert daemon.snapshot().injected_faults == ()
    assert neuron_fault("plan", str(plan), *at).stdout == told.stdout, "the same seed, the same story"
    injected = daemon.snapshot().injected_faults
    kinds = [line.split()[-1] for line in told.stdout.splitlines()[1:]]
    assert [fault.kind for fault in injected] == kinds
    assert {fault.for_seconds for fault in injected} == {60.0}


def test_a_plan_plays_on_the_hosts_of_a_hostfile(
    neuron_fault: RunNeuronFault, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    hosts = [start_daemon("--simulate", "trn1.2xlarge", name=f"{name}.sock") for name in ("a", "b")]
    hostfile = tmp_path / "hosts"
    hostfile.write_text("".join(f"host-{number} unix:{host.socket}\n" for number, host in enumerate(hosts)))
    plan = tmp_path / "plan.toml"
    plan.write_text("mean_seconds_between_faults = 600\nmix = { dma-abort = 1 }\n")
    done = neuron_fault("plan", str(plan), "--hostfile", str(hostfile), "--json")
    story = json.loads(done.stdout)
    for number, host in enumerate(hosts):
        moments = [each["at_seconds"] for each in story if each["host"] == f"host-{number}"]
        assert [fault.after_seconds for fault in host.snapshot().injected_faults] == moments
    assert {each["host"] for each in story} == {"host-0", "host-1"}


@pytest.mark.parametrize(
    ("text", "exit_code", "said"),
    [
        ("seed = x", 2, "it is no TOML"),
        ("frequency = 3", 2, "frequency is no key of a plan"),
        ("mix = { explosion = 1 }", 2, "explosion is no kind of fault"),
        ("mean_seconds_between_faults = 0.0001", 2, "more than 1000 faults on a host"),
        (None, 6, "there is no such file"),
    ],
)
def test_a_plan_of_rubbish_injects_nothing(
    neuron_fault: RunNeuronFault,
    shared_daemon: RunningDaemon,
    tmp_path: Path,
    text: str | None,
    exit_code: int,
    said: str,
) -> None:
    if text is not None:
        (tmp_path / "plan.toml").write_text(text)
    done = neuron_fault("plan", str(tmp_path / "plan.toml"), "--socket", shared_daemon.socket)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert shared_daemon.snapshot().injected_faults == ()
