from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.sysfs.roots import Roots
from neurontools.testing import DriverTree, process_on
from tests.harness.waiting import HANG_SECONDS


def _environment(tree: DriverTree) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("NEURON")},
        **tree.environment,
        "XDG_RUNTIME_DIR": tree.directory,
        "HOME": tree.directory,
    }


def _run(tree: DriverTree, *flags: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from neurontools.cli.ls.command import main; main()", *flags],
        env=_environment(tree) | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )


def test_the_tree_of_the_driver_is_seen(tmp_path: Path) -> None:
    assert not Roots.from_environment({"NEURONTOOLS_SYSFS_ROOT": str(tmp_path)}).has_devices
    with DriverTree("trn1.2xlarge") as tree:
        assert Roots.from_environment(tree.environment).has_devices


def test_devices_are_listed_without_a_daemon() -> None:
    with DriverTree("trn1.32xlarge") as tree:
        tree.set_processes(process_on(4711, "python train.py", cores=(2, 3), runtime_version="2.34.10"))
        plain = _run(tree)
        assert (plain.returncode, plain.stderr) == (0, "")
        assert "| 1      | 2      | 2-3      | 32 GB  | 13, 0, 5, 2   | 0000:10:1d.0 | 4711 " in plain.stdout
        devices = json.loads(_run(tree, "-j").stdout)
        assert [device["neuron_device"] for device in devices] == list(range(16))
        assert devices[1]["neuron_processes"] == [
            {"pid": 4711, "command": "python train.py", "neuron_runtime_version": "2.34.10"}
        ]
        assert _run(tree, "-j", "-d", "0000:10:1d.0").stdout.count('"bdf"') == 1
        assert "Legend" in _run(tree, "-t").stdout


def test_neuron_top_reads_devices_without_a_daemon_by_one_of_its_own() -> None:
    with DriverTree("trn1.2xlarge") as tree:
        top = [sys.executable, str(Path(__file__).parents[2] / "scripts/neuron-top"), "--json"]
        done = subprocess.run(top, env=_environment(tree), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        shown = json.loads(done.stdout)
        assert (shown["source"], shown["instance_type"]) == ("sysfs", "trn1.2xlarge")


def test_cores_are_counted_under_the_lnc() -> None:
    with DriverTree("trn2.3xlarge") as tree:
        assert json.loads(_run(tree, "-j").stdout)[0]["nc_count"] == 4
        one = _run(tree, "-j", environment={"NEURON_LOGICAL_NC_CONFIG": "1"})
        assert json.loads(one.stdout)[0]["nc_count"] == 8


def test_an_observer_is_listed_only_when_all_are_asked_for() -> None:
    with DriverTree("inf2.xlarge") as tree:
        tree.set_processes(process_on(99, "monitor", devices=(0,)))
        assert "monitor" not in _run(tree).stdout
        assert "monitor" in _run(tree, "-a").stdout


@pytest.mark.parametrize("flag", ["-d7", "-d0000:00:00.0"])
def test_a_device_that_is_not_there(flag: str) -> None:
    with DriverTree("inf2.xlarge") as tree:
        refused = _run(tree, flag)
        assert refused.returncode == 6
        assert refused.stdout == ""
        assert refused.stderr.startswith("neuron-ls: no device ")
        assert refused.stderr.count("\n") == 1


def test_a_tree_of_unknown_chips_is_an_error_in_one_line() -> None:
    with DriverTree("inf2.xlarge") as tree:
        for name in ("arch_type", "instance_type", "device_name"):
            tree.write(f"sys/devices/virtual/neuron_device/neuron0/info/architecture/{name}", "\x1b[31mXYZ9\n")
        tree.write("sys/devices/virtual/dmi/id/product_name", "m5.large\n")
        refused = _run(tree)
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "of no architecture this version knows (they say " in refused.stderr
        assert "\x1b" not in refused.stderr
