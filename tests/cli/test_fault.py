"""neuron-fault: what it prints, and that rubbish injects nothing (the flags: test_misuse)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.faults.kinds import KINDS
from tests.harness.command import RunCommand, calls
from tests.harness.pictures import is_as_stored
from tests.harness.running_daemon import RunningDaemon, StartDaemon

GOLDEN = Path(__file__).parent / "golden/faults.txt"


@pytest.fixture
def neuron_fault(clean_environment: dict[str, str]) -> RunCommand:
    return calls("neuron-fault", clean_environment)


def test_what_is_injected_is_listed_and_healed(neuron_fault: RunCommand, daemon: RunningDaemon) -> None:
    at = ("--socket", daemon.socket)
    assert neuron_fault("list", *at).stdout == "no faults\n"
    done = neuron_fault("inject", "hbm-uncorrectable", "--device", "3", "--after-executions", "50", *at)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "fault 1: hbm-uncorrectable device 3, after 50 executions, waits\n"
    done = neuron_fault("inject", "ecc-corrected", "-d", "0", "--amount", "12", "--for=3600", "-j", *at)
    (document,) = json.loads(done.stdout)
    assert (document["number"], document["amount"], document["state"]) == (2, 12, "holds")
    assert neuron_fault("list", *at).stdout.splitlines() == [
        "FAULT  KIND               WHERE     WHEN                 STATE  MET",
        "1      hbm-uncorrectable  device 3  after 50 executions  waits  0",
        "2      ecc-corrected      device 0  for 3600 s           holds  0",
    ]
    assert neuron_fault("heal", "2", *at).stdout == "healed 1 fault\n"
    assert neuron_fault("heal", *at).stdout == "healed 1 fault\n"
    assert json.loads(neuron_fault("list", "--json", *at).stdout) == []


def test_kinds_are_as_stored(neuron_fault: RunCommand) -> None:
    table = neuron_fault("kinds").stdout
    documents = json.loads(neuron_fault("kinds", "--json").stdout)
    assert [document["kind"] for document in documents] == list(KINDS)
    for document in documents:
        assert document.pop("summary") in table
    lines = [json.dumps({name: value for name, value in each.items() if value not in (None, [])}) for each in documents]
    assert is_as_stored(table + "\n".join(lines) + "\n", GOLDEN), "faults.txt differs; UPDATE_GOLDEN=1 writes it anew"


def test_a_plan_is_told_and_played(neuron_fault: RunCommand, daemon: RunningDaemon, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("seed = 3\nduration_seconds = 3600\nmean_seconds_between_faults = 300\nfor_seconds = 60\n")
    at = ("--socket", daemon.socket)
    told = neuron_fault("plan", str(plan), "--dry-run", *at)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines()[:4] == [
        "AT       HOST       DEVICE  KIND",
        "0:04:19  this host  10      hbm-uncorrectable",
        "0:11:53  this host  7       hang-compute",
        "0:20:13  this host  8       hbm-repairable",
    ]
    assert daemon.snapshot().injected_faults == ()
    assert neuron_fault("plan", str(plan), *at).stdout == told.stdout, "the same seed, the same story"
    injected = daemon.snapshot().injected_faults
    kinds = [line.split()[-1] for line in told.stdout.splitlines()[1:]]
    assert [fault.kind for fault in injected] == kinds
    assert {fault.for_seconds for fault in injected} == {60.0}


def test_a_plan_plays_on_the_hosts_of_a_hostfile(
    neuron_fault: RunCommand, start_daemon: StartDaemon, tmp_path: Path
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


def test_a_plan_of_rubbish_injects_nothing(
    neuron_fault: RunCommand, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    for text, exit_code, said in (
        (None, 6, "there is no such file"),
        ("seed = x", 2, "it is no TOML"),
        ("frequency = 3", 2, "frequency is no key of a plan"),
        ("mix = { explosion = 1 }", 2, "explosion is no kind of fault"),
        ("mean_seconds_between_faults = 0.0001", 2, "more than 1000 faults on a host"),
    ):
        if text is not None:
            (tmp_path / "plan.toml").write_text(text)
        done = neuron_fault("plan", str(tmp_path / "plan.toml"), "--socket", shared_daemon.socket)
        assert (done.returncode, done.stdout) == (exit_code, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert shared_daemon.snapshot().injected_faults == ()
