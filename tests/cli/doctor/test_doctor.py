"""neuron-doctor on hosts that are well, sick and odd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.model import EccCounters
from neurontools.testing import DriverTree
from tests.harness.healthcheck import has_findings
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

Doctor = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def doctor(clean_environment: dict[str, str], tmp_path: Path) -> Doctor:
    """Runs the command as a process of its own, on a host without a driver unless the environment says otherwise."""
    empty = {f"NEURONTOOLS_{name}_ROOT": str(tmp_path) for name in ("SYSFS", "DEV")}

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "neurontools.cli.doctor.command", *arguments],
            capture_output=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            env=clean_environment | empty | environment,
            timeout=HANG_SECONDS,
            check=False,
        )

    return run


def checks(doctor: Doctor, *arguments: str, **environment: str) -> list[Any]:
    done = doctor("--json", *arguments, **environment)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert done.returncode == any(check["level"] == "problem" for check in told["checks"])
    found: list[Any] = told["checks"]
    return found


def problems(found: list[Any]) -> list[str]:
    return [check["found"] for check in found if check["level"] == "problem"]


def test_a_laptop_is_well(doctor: Doctor) -> None:
    found = checks(doctor)
    assert problems(found) == []
    assert {check["area"] for check in found} >= {"installed", "driver", "daemon", "host"}
    text = doctor().stdout
    assert text.startswith("neuron-doctor ")
    # In brackets is the size of what is installed, which grows when Python compiles a module.
    assert all(check["found"].partition(" (")[0] in text for check in found if check["area"] != "daemon")


def test_a_host_with_its_daemon_is_well_until_a_device_is_sick(doctor: Doctor, start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        ask = ("--socket", daemon.socket)
        found = checks(doctor, *ask, **tree.environment)
        assert problems(found) == []
        (serving,) = [check["found"] for check in found if check["area"] == "daemon" and "PID" in check["found"]]
        assert str(daemon.pid) in serving
        tree.set_device(0, ecc=EccCounters(0, 0, 0, 0, 1))
        wait_until(lambda: has_findings(daemon))
        (sick,) = problems(checks(doctor, *ask, **tree.environment))
        assert sick.startswith("SRAM_UNCORRECTABLE_ERROR: device 0: ")
        Path(tree.roots.dev, "neuron0").unlink()
        assert any(
            "no device file of devices 0" in found for found in problems(checks(doctor, *ask, **tree.environment))
        )


def test_devices_without_a_daemon_and_without_a_driver_are_problems(doctor: Doctor, tmp_path: Path) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        assert any(found.startswith("no daemon answers") for found in problems(checks(doctor, **tree.environment)))
    device = tmp_path / "bus/pci/devices/0000:00:1e.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1d0f\n")
    (device / "device").write_text("0x7164\n")
    assert "1 Neuron devices on the PCI bus, and no driver is loaded" in problems(checks(doctor))


def test_sockets_that_are_none_or_hang_are_told(doctor: Doctor, start_daemon: StartDaemon, short_path: Path) -> None:
    plain = short_path / "n.sock"
    plain.write_text("")
    assert f"{plain} is no socket" in problems(checks(doctor, "--socket", str(plain)))
    plain.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(plain))
    assert any(str(plain) in found for found in problems(checks(doctor, "--socket", str(plain))))


def test_a_variable_that_nobody_reads_is_told_and_a_secret_is_not(doctor: Doctor) -> None:
    found = checks(doctor, NEURON_RT_VISBLE_CORES="0", NEURON_RT_NUM_CORES="x\x1b[2J", NEURON_API_TOKEN="s3cr3t")
    assert any("NEURON_RT_VISBLE_CORES" in problem for problem in problems(found))
    assert any("NEURON_RT_NUM_CORES" in problem for problem in problems(found))
    told = doctor(NEURON_RT_NUM_CORES="x\x1b[2J", NEURON_API_TOKEN="s3cr3t").stdout
    assert "s3cr3t" not in told
    assert "\x1b" not in told


def test_a_bundle_is_listed_asked_for_and_redacted(doctor: Doctor, start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    attachment = Attachment(daemon)
    attachment.attach(core_count=1, tag="secret-project")
    wait_until(lambda: daemon.find(os.getpid()))
    path = tmp_path / "report.tar.gz"
    refused = doctor("--bundle", str(path), "--socket", daemon.socket)
    assert (refused.returncode, path.exists()) == (1, False)
    assert "snapshot.json" in refused.stdout
    written = doctor("--bundle", str(path), "--yes", "--socket", daemon.socket)
    assert written.returncode == 0, written.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        content = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert all(name.partition("/")[2] in refused.stdout for name in content)
    everything = "".join(content.values())
    assert "secret-project" not in everything
    assert f'"pid": {os.getpid()}' in content["neuron-doctor/snapshot.json"]
    assert "pytest" not in content["neuron-doctor/snapshot.json"]
    assert "grpcio==" in content["neuron-doctor/packages.txt"]
    attachment.close()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--bundle", "report.zip", "--yes"], 2),
        (["--yes"], 2),
        (["--json", "--bundle", "x.tar.gz"], 2),
        (["--bundle", "/nonexistent/x.tar.gz", "--yes"], 1),
        (["--socket", "x" * 300], 2),
        (["--what"], 1),
        (["here"], 2),
    ],
)
def test_misuse_is_a_line(doctor: Doctor, arguments: list[str], code: int) -> None:
    done = doctor(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)


def test_a_daemon_that_is_stopped_is_a_problem_and_no_end(doctor: Doctor, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge")
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        assert any("no answer" in found for found in problems(checks(doctor, "--socket", daemon.socket)))
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def test_commands_of_others_are_told(doctor: Doctor, tmp_path: Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    shutil.copy("/bin/true", other / "neuron-ls")
    found = checks(doctor, PATH=str(other))
    assert any(str(other / "neuron-ls") in check["found"] for check in found)
