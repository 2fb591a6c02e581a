"""neuron-diag, level 2: what it computes on free cores, and the faults that only an execution meets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neurontools.diagnose.level2 import DeviceTests
from neurontools.diagnose.results import Outcome, TestResult
from neurontools.diagnose.table import TESTS
from neurontools.diagnose.workload_process import SIMULATED_STACK
from neurontools.faults.kinds import KINDS
from neurontools.faults.requests import FaultRequest
from neurontools.rpc import fault_calls
from tests.harness import python_process
from tests.harness.attached_process import AttachedProcess
from tests.harness.neuron_run import environment
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")
COMMAND = (sys.executable, "-m", "neurontools.cli.diag.command")
FOUND = [(test.name, kind) for test in TESTS if test.level > 1 for kind in test.finds if kind != "slow-link"]


def diag(daemon: RunningDaemon, directory: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """The report of a run; no file of it is left."""
    (directory / "tmp").mkdir(exist_ok=True)
    done = python_process.run(
        [*COMMAND, "--json", *arguments],
        loaded=python_process.TORCH,
        text=True,
        cwd=directory,
        env=environment(directory, daemon.socket, TMPDIR=str(directory / "tmp"), **variables),
    )
    assert os.listdir(directory / "tmp") == []  # noqa: PTH208
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return document


def outcomes(document: dict[str, Any], test: str, device_index: int) -> set[str]:
    return {
        each["outcome"] for each in document["results"] if (each["test"], each["device_index"]) == (test, device_index)
    }


def test_free_cores_are_tested_and_held_ones_are_left_alone(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")
    with AttachedProcess(daemon, "1") as holder:
        document = diag(daemon, tmp_path, "--level", "2", "--device", "0-1")
        assert daemon.holders() == [holder.pid]
    assert document["exit_code"] == 0, document["summary"]
    assert document["stack"] == SIMULATED_STACK
    assert "nothing about hardware" in document["proves"]
    found = {
        (
            *(each[name] for name in ("test", "outcome", "unit", "source", "expected")),
            re.sub(r"\d+", "N", each["reason"]),
        )
        for each in document["results"]
        if each["device_index"] is None or each["device_index"] == 1
    }
    peaks = "catalog: bf16 peak of a core of trn1.32xlarge", "catalog: HBM bandwidth of a device of trn1.32xlarge"
    passed = "pass", None, None, None
    assert found == {
        ("daemon", *passed, "neurond N.N.N, a snapshot every N.N s"),
        ("driver", "skip", None, None, None, "the devices are simulated"),
        ("variables", *passed, "the variables of the Neuron runtime are valid"),
        ("network", "skip", None, None, None, "the host is simulated"),
        ("devices", *passed, "is there, with its NeuronLinks"),
        ("counters", *passed, "no errors since the driver was loaded"),
        ("kernel-log", *passed, "no hardware error"),
        ("memory", "pass", "bytes", None, 0.05 * 32 * 2**30, "HBM is free"),
        ("processes", *passed, "no problem of a process"),
        ("earlier-runs", *passed, "no failed test of an earlier run"),
        ("matmul", *passed, "products in fpN, bfN, fpN are exact"),
        ("convolution", *passed, "a convolution in fpN is exact"),
        ("random", *passed, "random numbers and stochastic rounding have the expected statistics"),
        ("hbm", "pass", "bytes/s", peaks[1], 820 * 2**30, "N patterns in N MiB are intact"),
        ("transfer", "pass", "bytes/s", None, None, "bytes return from the device as they were sent"),
        ("collective", "pass", "s", None, None, "a collective ends at once"),
        ("speed", "pass", "FLOP/s", peaks[0], 95e12, "is about as fast as the other cores"),
        ("reports", *passed, "neurond counted the executions of the test"),
        ("all-reduce", "pass", "bytes/s", None, None, "sums of N ranks are exact"),
        ("all-gather", *passed, "parts of N ranks are intact"),
        ("between-hosts", "skip", None, None, None, "needs --hosts with two hosts"),
    }
    skipped = [each for each in document["results"] if each["outcome"] == "skip"]
    held = {each["reason"] for each in skipped if each["neuroncore_index"] == 0}
    assert held == {f"not tested: PID {holder.pid} holds the core"}


@pytest.mark.parametrize(
    ("test", "kind"),
    [pytest.param(test, kind, marks=() if kind == "bit-flip" else pytest.mark.slow) for test, kind in FOUND],
)
def test_each_fault_fails_the_test_that_claims_to_find_it(
    start_daemon: StartDaemon, tmp_path: Path, test: str, kind: str
) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")
    fault_calls.inject(daemon.socket, [FaultRequest(kind, device_index=1)])
    names = f"matmul,{test}" if test == "reports" else test
    options = ("--test", names, "--device", "1-2", "--duration", "0")
    # Nothing else has a time limit that a busy machine could reach.
    limits = {"NEURON_RT_EXEC_TIMEOUT": "5"} if kind.startswith("hang-") else {}
    document = diag(daemon, tmp_path, *options, **limits)
    assert document["exit_code"] == 1, document
    assert "fail" in outcomes(document, test, 1), document
    if test != "reports":  # one process holds both devices, and its reports are lost
        assert outcomes(document, test, 2) == {"pass"}, document
    failed = [each for each in document["results"] if each["outcome"] == "fail"]
    assert any(each["injected"] and each["action"] for each in failed)
    kept = [finding for finding in daemon.findings("test_failed") if finding.device_indices == (1,)]
    assert [(finding.part, finding.injected) for finding in kept] == [(test, True)]
    fault_calls.heal(daemon.socket)
    wait_until(lambda: not daemon.holders())
    assert diag(daemon, tmp_path, *options)["exit_code"] == 0
    assert not daemon.findings("test_failed")


def test_hosts_exchange_data_with_the_next_host(start_daemon: StartDaemon, tmp_path: Path) -> None:
    flags = ("--simulate", "trn1.2xlarge", "--interval", "0.05")
    one, other = (start_daemon(*flags, name=name) for name in ("one.sock", "other.sock"))
    hosts = f"unix:{one.socket},unix:{other.socket}"
    document = diag(one, tmp_path, "--hosts", hosts, "--test", "between-hosts")
    (link,) = document["links"]
    assert (link["host"], link["peer"], link["outcome"], link["simulated"]) == ("one", "other", "pass", True), document
    assert link["bytes_per_second"] > 0
    assert [each["outcome"] for each in document["hosts"]] == ["pass", "pass"]
    with AttachedProcess(other, "2"):
        (held,) = diag(one, tmp_path, "--hosts", hosts, "--test", "between-hosts")["links"]
    assert (held["outcome"], held["reason"]) == ("skip", "no tested core is free")


def test_level_3_trains_exactly_loads_all_cores_and_names_the_slow_link(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")
    names = ",".join(test.name for test in TESTS if test.level == 3)
    fault_calls.inject(daemon.socket, [FaultRequest("slow-link", device_index=5, peer_device_index=1, amount=30)])
    with AttachedProcess(daemon, "2"):  # device 0 has no free core
        document = diag(daemon, tmp_path, "--test", names, "--device", "0-2,5,6", "--duration", "0")
    assert (document["exit_code"], document["level"]) == (1, 3), document
    results: dict[str, dict[tuple[int, int | None], dict[str, Any]]] = {}
    for each in document["results"]:
        key = "peer_device_index" if each["test"] == "links" else "neuroncore_index"
        results.setdefault(each["test"], {})[each["device_index"], each[key]] = each
    links = {ends: link["outcome"] for ends, link in results["links"].items()}
    assert links == {(0, 1): "skip", (1, 2): "pass", (1, 5): "fail", (2, 6): "pass", (5, 6): "pass"}
    slow = results["links"][1, 5]
    assert slow["measured"] * 2 < slow["expected"]
    assert (slow["unit"], slow["injected"], bool(slow["action"])) == ("bytes/s", True, True)
    cores = {(core // 2, core): "skip" if core < 2 else "pass" for core in (0, 1, 2, 3, 4, 5, 10, 11, 12, 13)}
    for test in ("training", "sustained"):
        assert {place: each["outcome"] for place, each in results[test].items()} == cores


def test_sustained_load_finds_a_fault_that_begins_later(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    fault = FaultRequest("bit-flip", neuroncore_index=1, after_executions=5, amount=1000)
    fault_calls.inject(daemon.socket, [fault])
    document = diag(daemon, tmp_path, "--test", "sustained", "--duration", "2")
    (sick,) = [each for each in document["results"] if each["outcome"] == "fail"]
    assert (sick["neuroncore_index"], sick["injected"]) == (1, True)
    assert sick["reason"].startswith("after ")


def test_the_losses_of_the_training_are_exact(tmp_path: Path) -> None:
    script = tmp_path / "losses.py"
    script.write_text(
        "import torch; from neurontools.diagnose.training import LOSSES, train\n"
        "print(train('cpu', torch.float64) == list(LOSSES))"
    )
    command = [sys.executable, "-m", "neurontools.runtime", str(script)]
    done = python_process.run(command, loaded=python_process.TORCH, text=True)
    assert done.stdout == "True\n"


class TimeIsOver(Exception):
    pass


def test_cores_without_a_result_could_not_run_after_a_timeout(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    for name, value in environment(tmp_path, daemon.socket).items():
        monkeypatch.setenv(name, value)
    names = ("matmul", "convolution", "speed", "reports", "all-reduce")

    def break_off(progress: str) -> None:
        if progress.startswith("convolution on core 1"):
            raise TimeIsOver

    found: list[TestResult] = []
    with DeviceTests(daemon.socket, [0], break_off) as tests:
        with pytest.raises(TimeIsOver):
            found.extend(tests.run(names))
        found += tests.missing_results(names, found, "no time", "")
    passed = {(each.test, each.neuroncore_index) for each in found if each.outcome is Outcome.PASS}
    assert passed == {("matmul", 0), ("matmul", 1), ("convolution", 0)}
    others = [(each.test, each.neuroncore_index) for each in found if each.outcome is Outcome.NOT_RUN]
    late = [(test, core) for test in ("speed", "all-reduce") for core in (0, 1)]
    assert sorted(others, key=str) == sorted([("convolution", 1), ("reports", None), *late], key=str)


@pytest.mark.slow
def test_a_rank_that_cannot_start_does_not_delay_the_others(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    for name, value in environment(tmp_path, daemon.socket).items():
        monkeypatch.setenv(name, value)
    with DeviceTests(daemon.socket, [0], lambda _: None) as tests, AttachedProcess(daemon, "1"):
        results = {each.neuroncore_index: each for each in tests.run(["all-reduce"])}
    assert {each.outcome for each in results.values()} == {Outcome.NOT_RUN}
    assert "exit code 1" in results[0].reason  # the holder has core 0
    assert results[1].reason == "a peer failed"
    assert not any("replaced" in each.action for each in results.values())


def test_a_workload_that_cannot_start_never_looks_like_a_sick_device(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    (tmp_path / "torch.py").write_text("raise ImportError('broken')\n")
    variables = environment(tmp_path, daemon.socket, PYTHONPATH=os.pathsep.join((str(tmp_path), PYTHONPATH)))
    command = [*COMMAND, "--test", "matmul,reports,all-reduce", "--json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"]) == (2, 2), document
    assert {each["outcome"] for each in document["results"]} <= {"could not run", "skip"}


def test_every_fault_is_claimed_by_a_test() -> None:
    claimed = {kind for test in TESTS for kind in test.finds}
    assert claimed | {"host-lost"} == KINDS.keys()
