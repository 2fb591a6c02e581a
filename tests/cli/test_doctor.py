"""neuron-doctor on hosts that are well, sick and odd."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.doctor.checks import directory_size_bytes
from neurontools.model import EccCounters
from neurontools.testing import DriverTree
from tests.harness.command import RunCommand, calls
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until


@pytest.fixture
def doctor(clean_environment: dict[str, str], tmp_path: Path) -> RunCommand:
    """Calls the command, on a host without a driver unless the environment says otherwise."""
    empty = {f"NEURONTOOLS_{name}_ROOT": str(tmp_path) for name in ("SYSFS", "DEV")}
    return calls("neuron-doctor", clean_environment | empty)


def checks(doctor: RunCommand, *arguments: str, **environment: str) -> list[Any]:
    done = doctor("--json", *arguments, **environment)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert done.returncode == any(check["level"] == "problem" for check in told["checks"])
    found: list[Any] = told["checks"]
    return found


def problems(doctor: RunCommand, *arguments: str, **environment: str) -> list[str]:
    found = checks(doctor, *arguments, **environment)
    return [check["found"] for check in found if check["level"] == "problem"]


def test_a_laptop_is_well(doctor: RunCommand) -> None:
    found = checks(doctor)
    assert not [check for check in found if check["level"] == "problem"]
    assert {check["area"] for check in found} >= {"installed", "driver", "daemon", "host"}
    text = doctor().stdout
    assert text.startswith("neuron-doctor ")
    # In brackets is the size of what is installed, which grows when Python compiles a module.
    assert all(check["found"].partition(" (")[0] in text for check in found if check["area"] != "daemon")


def test_the_size_of_a_directory_is_that_of_its_first_files(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "below/file").write_bytes(b"45")
    assert [directory_size_bytes(str(tmp_path), most) for most in (2, 1)] == [5, 3]


def test_a_host_with_its_daemon_is_well_until_a_device_is_sick(
    doctor: RunCommand, tree: DriverTree, watching: RunningDaemon
) -> None:
    ask = ("--socket", watching.socket)
    found = checks(doctor, *ask, **tree.environment)
    assert not [check for check in found if check["level"] == "problem"]
    (serving,) = [check["found"] for check in found if check["area"] == "daemon" and "PID" in check["found"]]
    assert str(watching.pid) in serving
    tree.set_device(0, ecc=EccCounters(0, 0, 0, 0, 1))
    wait_until(watching.findings)
    (sick,) = problems(doctor, *ask, **tree.environment)
    assert sick.startswith("SRAM_UNCORRECTABLE_ERROR: device 0: ")
    Path(tree.roots.dev, "neuron0").unlink()
    assert any("no device files of devices 0" in found for found in problems(doctor, *ask, **tree.environment))


def test_devices_without_a_daemon_and_without_a_driver_are_problems(
    doctor: RunCommand, tree: DriverTree, tmp_path: Path
) -> None:
    assert any(found.startswith("no daemon answers") for found in problems(doctor, **tree.environment))
    device = tmp_path / "bus/pci/devices/0000:00:1e.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1d0f\n")
    (device / "device").write_text("0x7164\n")
    assert "1 Neuron devices on the PCI bus, but no driver is loaded" in problems(doctor)


@pytest.mark.slow
def test_a_daemon_that_does_not_answer_is_a_problem_and_no_end(
    doctor: RunCommand, start_daemon: StartDaemon, socket_directory: Path
) -> None:
    plain = socket_directory / "plain.sock"
    plain.write_text("")
    assert f"{plain} is not a socket" in problems(doctor, "--socket", str(plain))
    plain.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(plain))
    assert any(str(plain) in found for found in problems(doctor, "--socket", str(plain)))
    stopped = start_daemon("--simulate", "trn1.2xlarge")
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        assert any("no answer" in found for found in problems(doctor, "--socket", stopped.socket))
    finally:
        stopped.process.send_signal(signal.SIGCONT)


def test_odd_variables_and_commands_of_others_are_told_and_a_secret_is_not(doctor: RunCommand, tmp_path: Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    shutil.copy("/bin/true", other / "neuron-ls")
    odd = {"NEURON_RT_VISBLE_CORES": "0", "NEURON_RT_NUM_CORES": "x\x1b[2J", "NEURON_API_TOKEN": "s3cr3t"}
    found = checks(doctor, **odd, PATH=str(other))
    told = [check["found"] for check in found if check["level"] == "problem"]
    assert any("NEURON_RT_VISBLE_CORES" in problem for problem in told)
    assert any("NEURON_RT_NUM_CORES" in problem for problem in told)
    assert any(str(other / "neuron-ls") in check["found"] for check in found)
    text = doctor(**odd).stdout
    assert "s3cr3t" not in text
    assert "\x1b" not in text


def test_a_bundle_is_listed_and_asked_for(doctor: RunCommand, start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    path = tmp_path / "report.tar.gz"
    refused = doctor("--bundle", str(path), "--socket", daemon.socket)
    assert (refused.returncode, path.exists()) == (1, False)
    assert "snapshot.json" in refused.stdout
    unwritable = doctor("--bundle", f"{tmp_path}/none/x.tar.gz", "--yes", "--socket", daemon.socket)
    told = f"neuron-doctor: {tmp_path}/none/x.tar.gz: No such file or directory; give the name of a new file\n"
    assert (unwritable.returncode, unwritable.stderr) == (1, told)
    written = doctor("--bundle", str(path), "--yes", "--socket", daemon.socket)
    assert written.returncode == 0, written.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert all(member.name.partition("/")[2] in refused.stdout for member in archive.getmembers())
