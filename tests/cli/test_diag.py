"""neuron-diag, level 1: outcomes and exit codes, the documents, and the faults that it finds without an execution."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from neurontools.cli.diag.hosts import HostsDocument
from neurontools.diagnose.document import DiagDocument
from neurontools.diagnose.results import Outcome
from neurontools.diagnose.table import TESTS
from neurontools.faults.requests import FaultRequest
from neurontools.model import PowerUtilization
from neurontools.rpc import fault_calls
from neurontools.testing import DriverTree
from neurontools.util.version import __version__
from tests.harness.command import RunCommand, calls
from tests.harness.fleet import ssh_environment
from tests.harness.paths import PYTHONPATH, ROOT
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

yaml = pytest.importorskip("yaml")


@pytest.fixture
def diag(clean_environment: dict[str, str]) -> RunCommand:
    """Calls the command in this process."""
    return calls("neuron-diag", clean_environment)


def outcomes(document: dict[str, Any], test: str) -> dict[int | None, str]:
    """Outcome of a test by device."""
    return {each["device_index"]: each["outcome"] for each in document["results"] if each["test"] == test}


def report_of(diag: RunCommand, *arguments: str, **environment: str) -> dict[str, Any]:
    done = diag(*arguments, "--json", **environment)
    document = TypeAdapter(DiagDocument).validate_json(done.stdout)
    assert document["exit_code"] == done.returncode
    return dict(document)


def test_a_healthy_host_passes_and_says_what_that_proves(
    diag: RunCommand, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    done = diag("--socket", shared_daemon.socket, "--textfile", str(tmp_path / "diag.prom"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("neuron-diag 0.1.0, level 1: trn1.32xlarge, simulated, 16 devices\n")
    assert re.search(r"^devices +pass +devices 0-15 +is there", done.stdout, re.MULTILINE)
    assert "nothing about hardware" in done.stdout.splitlines()[-1]
    document = report_of(diag, "--socket", shared_daemon.socket)
    ran = {each["test"] for each in document["results"]}
    assert ran == {test.name for test in TESTS if test.level == 1}
    assert outcomes(document, "devices") == dict.fromkeys(range(16), "pass")
    assert 'neurontools_diag_exit_code{level="1"} 0' in (tmp_path / "diag.prom").read_text()
    schema = json.loads(diag("--json-schema").stdout)
    assert schema["required"] == list(document)


def test_each_fault_that_needs_no_execution_fails_the_test_that_claims_it(
    diag: RunCommand, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon("--simulate", "trn2.48xlarge", "--interval", "0.05")  # has parts whose health is reported
    for test in TESTS:
        for kind in test.finds if test.level == 1 else ():
            fault_calls.inject(daemon.socket, [FaultRequest(kind, device_index=3)])
            wait_until(lambda: any(finding.injected for finding in daemon.findings()))
            document = report_of(diag, "--socket", daemon.socket)
            assert document["exit_code"] == 1, kind
            assert outcomes(document, test.name)[3] == "fail", kind
            assert outcomes(document, test.name)[2] == "pass", kind
            failed = [each for each in document["results"] if each["outcome"] == Outcome.FAIL]
            assert all(each["injected"] and each["action"] for each in failed), kind
            assert report_of(diag, "--socket", daemon.socket, "--device", "4,ffffffff00000005")["exit_code"] == 0, kind
            fault_calls.heal(daemon.socket)
            wait_until(lambda: not daemon.findings())
    assert report_of(diag, "--socket", daemon.socket)["exit_code"] == 0


def test_the_manual_has_every_test_with_its_level_and_its_faults(diag: RunCommand) -> None:
    page = (ROOT / "man/neuron-diag.1").read_text("utf-8")
    rows = re.findall(r"^\.It Cm ([\w-]+) Ta (\d) Ta ?(.*)$", page, re.MULTILINE)
    assert rows == [(test.name, str(test.level), ", ".join(test.finds)) for test in TESTS]
    listed = diag("--list-tests").stdout
    assert all(test.name in listed and test.summary in listed for test in TESTS)


def test_a_driver_tree_is_judged_by_the_checks_of_the_doctor_without_a_daemon(
    diag: RunCommand, tree: DriverTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)  # another test may have loaded the bundled one
    document = report_of(diag, "--test", "driver,devices,memory", **tree.environment)
    assert (document["instance_type"], document["simulated"]) == ("trn1.2xlarge", False)
    assert "Nothing was executed" in document["proves"]
    (driver, *_) = [each for each in document["results"] if each["test"] == "driver"]
    assert driver["reason"].startswith("Neuron driver 2.")
    assert outcomes(document, "devices") == {0: "pass"}
    tree.set_device(0, power=PowerUtilization(time.time(), 0.2, 0.75, 0.5))
    document = report_of(diag, "--test", "matmul,power", **tree.environment)
    assert (document["exit_code"], outcomes(document, "matmul")) == (2, {None: "could not run"})
    assert (document["results"][-1]["measured"], document["results"][-1]["unit"]) == (0.75, "ratio of the maximum")
    assert "Nothing was executed" in document["proves"]


def test_the_prolog_fails_only_if_a_test_failed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    command = tmp_path / "neuron-diag"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m neurontools.cli.diag.command "$@"\n')
    command.chmod(0o700)

    def prolog(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "NEURON_DIAG": str(command)}
        script = ROOT / "deploy/slurm/neuron-diag-prolog"
        return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False)

    passed = prolog("--socket", daemon.socket)
    assert (passed.returncode, passed.stdout) == (0, "")  # Slurm takes standard output of a prolog as a script
    unknown = prolog("--socket", str(tmp_path / "none.sock"))
    assert unknown.returncode == 0
    assert "could not run" in unknown.stderr
    fault_calls.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=3)])
    wait_until(daemon.findings)
    failed = prolog("--socket", daemon.socket)
    assert failed.returncode == 1
    assert "1 test failed: counters on device 3" in failed.stderr


def test_the_job_for_kubernetes_runs_the_command_of_this_version(
    diag: RunCommand, shared_daemon: RunningDaemon
) -> None:
    job = yaml.safe_load((ROOT / "deploy/kubernetes/neuron-diag-job.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"neurontools:{__version__}"
    assert container["command"][0] == "neuron-diag"
    assert diag(*container["command"][1:], "--socket", shared_daemon.socket).returncode == 0


def test_a_host_whose_health_is_unknown_never_looks_sick(
    diag: RunCommand, empty_host: dict[str, str], tmp_path: Path, shared_daemon: RunningDaemon
) -> None:
    document = report_of(diag, "--test", "devices", **empty_host)
    assert (document["exit_code"], outcomes(document, "devices")) == (2, {None: "could not run"})
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "n.sock"))
        silent.listen()
        document = report_of(diag, "--timeout", "0.2", "--socket", str(tmp_path / "n.sock"))
    assert document["exit_code"] == 2
    assert {each["outcome"] for each in document["results"]} == {"could not run"}
    done = diag("--socket", shared_daemon.socket, "--textfile", str(tmp_path / "none" / "a.prom"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such file or directory; give a file that can be written" in done.stderr


def test_many_hosts_are_tested_and_the_worst_is_first(
    diag: RunCommand, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    flags = ("--simulate", "trn1.2xlarge", "--interval", "0.05")
    sick, healthy = (start_daemon(*flags, name=name) for name in ("sick.sock", "healthy.sock"))
    fault_calls.inject(sick.socket, [FaultRequest("hbm-uncorrectable", device_index=0)])
    wait_until(sick.findings)
    ssh = ssh_environment(tmp_path, healthy.socket)
    ssh["NEURONTOOLS_REMOTE_DIAG"] = f"{sys.executable} -m neurontools.cli.diag.command --socket {healthy.socket}"
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"sick unix:{sick.socket}\ngone unix:{tmp_path}/gone\nsecure grpcs://secure:1\n")
    hostfile.write_text(f"{hostfile.read_text()}by-ssh\nrefused\ndenied\n")
    done = diag("--hostfile", str(hostfile), "--json", **ssh, PYTHONPATH=PYTHONPATH)
    document = TypeAdapter(HostsDocument).validate_json(done.stdout)
    assert (done.returncode, document["exit_code"]) == (1, 1)
    assert document["summary"] == "6 hosts: 1 failed, 3 lost, 1 not known, 1 passed"
    assert [(each["host"], each["address"], each["outcome"], "report" in each) for each in document["hosts"]] == [
        ("sick", f"unix:{sick.socket}", "fail", True),
        ("denied", "ssh:denied", "lost", False),
        ("gone", f"unix:{tmp_path}/gone", "lost", False),
        ("refused", "ssh:refused", "lost", False),
        ("secure", "grpcs://secure:1", "could not run", False),
        ("by-ssh", "ssh:by-ssh", "pass", True),
    ]
    summaries = [each["summary"] for each in document["hosts"] if "report" in each]
    assert summaries == ["1 test failed: counters on device 0, 7 passed, 2 skipped", "8 passed, 2 skipped"]
    report = TypeAdapter(DiagDocument).validate_python(document["hosts"][-1].get("report"))
    assert report["exit_code"] == 0
    text = diag("--hostfile", str(hostfile), "--test", "counters", **ssh, PYTHONPATH=PYTHONPATH).stdout
    by_ssh = "name the host to reach it by SSH"
    start = f'start one with "neurond --socket {tmp_path}/gone --simulate trn1.32xlarge"'
    assert text.splitlines() == [
        "sick     fail           1 test failed: counters on device 0",
        "         fail: counters on device 0: 1 uncorrected ECC error in HBM since the driver was loaded [injected]",
        "           do: move the work off this device; stop and start the instance to get another host",
        r"denied   lost           \x1b[2Jroot@denied: Permission denied (publickey).",
        f"gone     lost           no monitor daemon at unix:{tmp_path}/gone (no such file or directory); {start}",
        "refused  lost           ssh: connect to host refused port 22: Connection refused",
        f"secure   could not run  neuron-diag runs on the host itself, which grpcs:// does not allow; {by_ssh}",
        "by-ssh   pass           1 passed",
        "6 hosts: 1 failed, 3 lost, 1 not known, 1 passed",
        "The host is simulated: a pass proves that the tests work, and nothing about hardware.",
    ]
    fault_calls.heal(sick.socket)
    lost = diag("--hosts", f"unix:{healthy.socket},unix:{tmp_path}/gone", PYTHONPATH=PYTHONPATH)
    assert lost.returncode == 2
    assert "2 hosts: 1 lost, 1 passed" in lost.stdout
    assert diag("--hosts", f"unix:{healthy.socket}", PYTHONPATH=PYTHONPATH).returncode == 0
    assert diag("--hosts", f"unix:{healthy.socket},a[", PYTHONPATH=PYTHONPATH).returncode == 2
    assert diag("--hosts", "a", "--socket", "b").returncode == 2
