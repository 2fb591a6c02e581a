"""neuron-healthcheck: its exit code and its one line, and what the node problem detector and Slurm make of them."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.healthcheck.command import FORMATS
from neurontools.model import EccCounters, StatusCounters
from neurontools.testing import DriverTree
from tests.harness.command import RunCommand, calls
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until


@pytest.fixture
def healthcheck(clean_environment: dict[str, str]) -> RunCommand:
    """Calls the command in this process."""
    return calls("neuron-healthcheck", clean_environment)


HBM_ERROR = EccCounters(0, 1, 0, 0, 0)


def test_a_host_that_is_well(healthcheck: RunCommand, shared_daemon: RunningDaemon) -> None:
    names = [name for name in FORMATS if name != "slurm"]
    told = {name: healthcheck("--socket", shared_daemon.socket, "--format", name) for name in names}
    assert [(name, done.returncode, done.stderr) for name, done in told.items()] == [(name, 0, "") for name in names]
    assert all(done.stdout.count("\n") == 1 for done in told.values())
    assert told["text"].stdout == "ok: all 16 devices are healthy\n"
    assert told["npd"].stdout == "Neuron has no error\n"
    assert told["nagios"].stdout == "NEURON OK - all 16 devices are healthy | devices=16 findings=0\n"
    document = json.loads(told["json"].stdout)
    assert (document["status"], document["healthy"], document["devices"]) == ("ok", True, 16)


def test_an_idle_device_with_an_error_is_told_of_in_every_format(
    healthcheck: RunCommand, tree: DriverTree, watching: RunningDaemon
) -> None:
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(watching.findings)
    ask = "--socket", watching.socket, "--format"
    text, npd, nagios, told = (healthcheck(*ask, name) for name in ("text", "npd", "nagios", "json"))
    assert (text.returncode, npd.returncode, nagios.returncode, told.returncode) == (1, 1, 2, 1)
    assert text.stdout.startswith("critical: device 0: 1 uncorrected ECC error in HBM ")
    assert npd.stdout.startswith("NeuronHasError_HBM_UNCORRECTABLE_ERROR: device 0: 1 uncorrected ECC error")
    assert nagios.stdout.startswith("NEURON CRITICAL - device 0: ")
    (finding,) = json.loads(told.stdout)["findings"]
    assert finding["name"] == "HBM_UNCORRECTABLE_ERROR"
    assert (finding["problem"], finding["severity"], finding["part"]) == ("node", "critical", "hbm")
    assert healthcheck(*ask, "text", "--only", "SRAM_UNCORRECTABLE_ERROR").returncode == 0
    assert healthcheck(*ask, "text", "--problems", "user").returncode == 0


def test_without_a_daemon_the_devices_are_read(healthcheck: RunCommand, tree: DriverTree) -> None:
    patient = ("--timeout", str(HANG_SECONDS))  # a daemon of its own is started, which takes long on a busy machine
    assert healthcheck(*patient, **tree.environment).stdout == "ok: 1 device is healthy\n"
    tree.set_device(0, ecc=HBM_ERROR)
    assert healthcheck(*patient, **tree.environment).returncode == 1


@pytest.mark.parametrize(("name", "code"), [("text", 2), ("json", 2), ("npd", 2), ("nagios", 3)])
def test_where_nothing_can_be_known_that_is_said(
    healthcheck: RunCommand, empty_host: dict[str, str], name: str, code: int
) -> None:
    for socket_path in ((), ("--socket", "/nonexistent.sock"), ("--socket", "x" * 500)):
        done = healthcheck("--format", name, *socket_path, **empty_host)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (code, "", 1)


def test_a_host_whose_driver_is_not_loaded_is_unhealthy_where_devices_are_expected(
    healthcheck: RunCommand, empty_host: dict[str, str]
) -> None:
    done = healthcheck("--expect", "16", **empty_host)
    assert (done.returncode, done.stdout.startswith("critical: 0 of 16 expected devices")) == (1, True)


def test_a_daemon_that_hangs_is_given_up(healthcheck: RunCommand, start_daemon: StartDaemon) -> None:
    hanging = start_daemon("--simulate", "trn1.2xlarge")
    hanging.process.send_signal(signal.SIGSTOP)
    try:
        done = healthcheck("--socket", hanging.socket, "--timeout", "0.5", "--format", "npd")
    finally:
        hanging.process.send_signal(signal.SIGCONT)
    assert done.returncode == 2
    assert done.stdout.startswith("Neuron health is not known: ")


def test_rubbish_in_place_of_a_daemon_is_no_sick_host(healthcheck: RunCommand, socket_directory: Path) -> None:
    path = socket_directory / "n.sock"

    def answer() -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"\x1b[2JHTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(HANG_SECONDS)
        server.bind(str(path))
        server.listen()
        answering = threading.Thread(target=answer)
        answering.start()
        done = healthcheck("--socket", str(path), "--timeout", str(HANG_SECONDS))
        answering.join()
    assert (done.returncode, done.stderr, done.stdout.count("\n"), "\x1b" in done.stdout) == (2, "", 1, False)


@pytest.mark.parametrize("before", ["--format=nagios", "--format nagios"])
def test_misuse_of_the_plugin_for_nagios_is_unknown(healthcheck: RunCommand, before: str) -> None:
    done = healthcheck(*before.split(), "--level", "high")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)


def test_a_broken_installation_is_no_sick_host(tmp_path: Path) -> None:
    shutil.copy(ROOT / "scripts/neuron-healthcheck", tmp_path)
    (tmp_path / "neurontools").mkdir()
    (tmp_path / "neurontools/__init__.py").write_text("raise OSError('gone')")
    command = [sys.executable, str(tmp_path / "neuron-healthcheck")]
    done = run_to_end(command)
    assert done.returncode == 2
    assert done.stdout.startswith("health not known: OSError: gone; ")


# The node problem detector, from its source (pkg/custompluginmonitor): a rule is a program with arguments and a time
# limit; 4 KiB of its standard output are read, trimmed and cut at max_output_length; 0 is well, 1 is not, anything else
# is unknown. Of the permanent rules of one condition the last result counts, whichever rule it is of.
SHIPPED: Any = json.loads((ROOT / "deploy/kubernetes/neuron-health-monitor.json").read_text("utf-8"))
CONDITIONS = {condition["type"]: condition for condition in SHIPPED["conditions"]}


def test_a_condition_has_one_rule_and_a_default() -> None:
    assert SHIPPED["plugin"] == "custom"
    rules = SHIPPED["rules"]
    assert {rule["type"] for rule in rules} == {"permanent"}
    assert Counter(rule["condition"] for rule in rules) == Counter(CONDITIONS.keys())
    assert CONDITIONS["NeuronHealth"]["reason"] == "NeuronHasNoError"


def test_limits_hold_a_check_that_gives_up_by_itself() -> None:
    limit = float(SHIPPED["pluginConfig"]["timeout"].removesuffix("s"))
    for rule in SHIPPED["rules"]:
        # 3 s until it gives up, 2 s until a daemon of its own has ended.
        assert 5 < float(rule["timeout"].removesuffix("s")) <= limit


def conditions(daemon: RunningDaemon) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition after its rule has run."""
    return {rule["condition"]: _run(rule, daemon.socket) for rule in SHIPPED["rules"]}


def _run(rule: Any, socket: str) -> tuple[str, str, str]:
    assert rule["path"] == "/usr/local/bin/neuron-healthcheck"
    done = calls("neuron-healthcheck", {})(*rule["args"], "--socket", socket)
    assert done.stderr == ""
    message = done.stdout.encode()[:4096].decode().strip()[: SHIPPED["pluginConfig"]["max_output_length"]]
    status = {0: "False", 1: "True"}.get(done.returncode, "Unknown")
    default = CONDITIONS[rule["condition"]]
    reason = rule["reason"] if status == "True" else default["reason"]
    return status, reason, default["message"] if status == "False" else message


def test_the_shipped_conditions_follow_the_host(tree: DriverTree, watching: RunningDaemon) -> None:
    assert conditions(watching) == {
        "NeuronHealth": ("False", "NeuronHasNoError", "Neuron has no error"),
        "NeuronWorkHang": ("False", "NeuronWorkGoesOn", "no execution hangs"),
    }
    tree.set_device(0, ecc=EccCounters(0, 0, 3, 0, 0))
    wait_until(watching.findings)
    assert conditions(watching)["NeuronHealth"][0] == "False", "a warning replaces no node"
    tree.set_core(0, status=StatusCounters(hw_nc_ue_error_total=1))  # the core failed because of its SRAM
    tree.set_device(0, ecc=EccCounters(0, 0, 3, 0, 1))
    wait_until(lambda: {"core_errors", "ecc_uncorrected"} <= {each.kind for each in watching.findings()})
    status, reason, message = conditions(watching)["NeuronHealth"]
    assert (status, reason) == ("True", "NeuronHasError")
    assert message.startswith("NeuronHasError_SRAM_UNCORRECTABLE_ERROR: device 0: ")
    assert conditions(watching)["NeuronWorkHang"][0] == "False"
    watching.stop()
    status, reason, message = conditions(watching)["NeuronHealth"]
    assert (status, reason, message.startswith("Neuron health is not known: ")) == ("Unknown", "NeuronHasNoError", True)


NO_ERROR = EccCounters(0, 0, 0, 0, 0)
SRAM_ERROR = EccCounters(0, 0, 0, 0, 1)
MARK = "[node_problem] neuron-healthcheck: "


@pytest.fixture
def cluster(watching: RunningDaemon, socket_directory: Path) -> Iterator[SlurmCluster]:
    directory = socket_directory / "slurm"
    directory.mkdir()
    with SlurmCluster(directory, watching.socket) as cluster:
        yield cluster


@needs_slurm
def test_a_sick_node_is_drained_with_a_reason_and_undrained_when_it_is_well(
    cluster: SlurmCluster, tree: DriverTree, watching: RunningDaemon
) -> None:
    assert "left as it is" in cluster.check().stdout
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: "DRAIN" in cluster.state())
    assert cluster.reason().startswith(f"{MARK}HBM_UNCORRECTABLE_ERROR: device 0: 1 uncorrected ECC error in HBM")
    assert "stays drained" in cluster.check().stdout
    tree.set_device(0, ecc=SRAM_ERROR)
    wait_until(lambda: "SRAM_UNCORRECTABLE_ERROR" in cluster.reason())
    tree.set_device(0, ecc=NO_ERROR)
    wait_until(lambda: "DRAIN" not in cluster.state())
    cluster.drain(f"{MARK}by hand, as if by an earlier check")
    wait_until(lambda: "DRAIN" not in cluster.state())
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: "DRAIN" in cluster.state())
    watching.stop()
    unknown = cluster.check()
    assert (unknown.returncode, unknown.stdout.startswith("unknown: ")) == (0, True)
    assert "DRAIN" in cluster.state()


@pytest.fixture
def without_slurm(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "SLURMD_NODENAME": "n0"}


def test_where_slurm_is_not_nothing_is_done(
    healthcheck: RunCommand, tree: DriverTree, watching: RunningDaemon, without_slurm: dict[str, str]
) -> None:
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(watching.findings)
    done = healthcheck("--format", "slurm", "--socket", watching.socket, **without_slurm)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[no scontrol here: nothing done]\n")


@pytest.mark.parametrize("says", ["exit 1", "echo slurm_load_node error >&2; exit 1", "echo gibberish", "kill -9 $$"])
def test_a_scontrol_that_fails_is_a_line_and_changes_nothing(
    healthcheck: RunCommand, watching: RunningDaemon, without_slurm: dict[str, str], says: str
) -> None:
    scontrol = Path(without_slurm["PATH"]) / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{says}\n")
    scontrol.chmod(0o755)
    done = healthcheck("--format", "slurm", "--socket", watching.socket, **without_slurm)
    assert (done.returncode, done.stderr.count("\n"), done.stdout.count("\n")) == (1, 1, 1)


OURS = f"State=DOWN*+DRAIN+NOT_RESPONDING ThreadsPerCore=1\n   Reason={MARK}x [slurm@2026-01-02T03:04:05]"
FAN = "State=IDLE+DRAIN\n   Reason=fan [root@2026-01-02T03:04:05]"


def test_what_is_asked_of_slurm(
    healthcheck: RunCommand, tree: DriverTree, watching: RunningDaemon, without_slurm: dict[str, str]
) -> None:
    scontrol = Path(without_slurm["PATH"]) / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "show node n0" ] && echo "$NODE" || printf "%s|" "$@" >"$0.updates"\n'
    )
    scontrol.chmod(0o755)
    updates = scontrol.with_suffix(".updates")

    def check(node: str, *options: str) -> tuple[str, str]:
        """What is done to a node in this state: as the command tells it, and as scontrol is told."""
        updates.write_text("")
        at = ("--format", "slurm", "--socket", watching.socket)
        done = healthcheck(*at, *options, **without_slurm, NODE=f"NodeName=n0\n   {node}")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.rpartition(" [node n0 ")[2].removesuffix("]\n"), updates.read_text()

    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(watching.findings)
    assert check("State=MIXED*+DYNAMIC_NORM ThreadsPerCore=1", "--dry-run") == ("would be drained", "")
    told, update = check("State=IDLE")
    assert told == "drained"
    drained, _, reason = update.removesuffix("|").rpartition("|")
    assert drained == "update|NodeName=n0|State=DRAIN"
    assert reason.startswith(f"Reason={MARK}HBM_UNCORRECTABLE_ERROR: device 0: 1 uncorrected ECC error in HBM")
    assert check(f"State=IDLE+DRAIN$\n   {reason} [root@2026-01-02T03:04:05]") == ("stays drained", "")
    assert check(OURS) == ("drained", update)
    assert check(FAN) == ("is drained already: fan", "")
    tree.set_device(0, ecc=NO_ERROR)
    wait_until(lambda: not watching.findings())
    for node in ("State=IDLE", FAN, "State=DOWN"):
        assert check(node) == ("left as it is", "")
    for node in (OURS, OURS.replace("node_problem", "user_problem")):
        assert check(node) == ("undrained", "update|NodeName=n0|State=UNDRAIN|")
    assert check(OURS, "--dry-run") == ("would be undrained", "")
    assert check(OURS, "--no-undrain") == ("is drained by an earlier check; undrain it by hand", "")
