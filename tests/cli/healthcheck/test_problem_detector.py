"""The shipped configuration of the node problem detector, run by the contract of its plugins.

The contract, from its source (pkg/custompluginmonitor): a rule is a program with arguments and a time limit; 4 KiB of
its standard output are read, trimmed and cut at max_output_length; 0 is well, 1 is not, anything else is unknown. Of
the permanent rules of one condition the last result counts, whichever rule it is of.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from neurontools.model import EccCounters
from neurontools.testing import DriverTree
from tests.harness.healthcheck import HEALTHCHECK, has_findings
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

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


def test_conditions_follow_the_host(tree: DriverTree, watching: RunningDaemon) -> None:
    assert conditions(watching) == {
        "NeuronHealth": ("False", "NeuronHasNoError", "Neuron has no error"),
        "NeuronWorkHang": ("False", "NeuronWorkGoesOn", "no execution hangs"),
    }
    tree.set_device(0, ecc=EccCounters(0, 0, 0, 0, 1))
    wait_until(lambda: has_findings(watching))
    status, reason, message = conditions(watching)["NeuronHealth"]
    assert (status, reason) == ("True", "NeuronHasError")
    assert message.startswith("NeuronHasError_SRAM_UNCORRECTABLE_ERROR: device 0: ")
    assert conditions(watching)["NeuronWorkHang"][0] == "False"
    watching.stop()
    status, reason, message = conditions(watching)["NeuronHealth"]
    assert (status, reason, message.startswith("Neuron health is not known: ")) == ("Unknown", "NeuronHasNoError", True)


def test_a_warning_replaces_no_node(tree: DriverTree, watching: RunningDaemon) -> None:
    tree.set_device(0, ecc=EccCounters(0, 0, 3, 0, 0))
    wait_until(lambda: has_findings(watching))
    assert conditions(watching)["NeuronHealth"][0] == "False"


def conditions(daemon: RunningDaemon) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition after its rule has run."""
    return {rule["condition"]: _run(rule, daemon.socket) for rule in SHIPPED["rules"]}


def _run(rule: Any, socket: str) -> tuple[str, str, str]:
    assert rule["path"] == "/usr/local/bin/neuron-healthcheck"
    command = [sys.executable, str(HEALTHCHECK), *rule["args"], "--socket", socket]
    done = subprocess.run(command, capture_output=True, timeout=HANG_SECONDS, check=False)
    assert done.stderr == b""
    message = done.stdout[:4096].decode().strip()[: SHIPPED["pluginConfig"]["max_output_length"]]
    status = {0: "False", 1: "True"}.get(done.returncode, "Unknown")
    default = CONDITIONS[rule["condition"]]
    reason = rule["reason"] if status == "True" else default["reason"]
    return status, reason, default["message"] if status == "False" else message
