"""neuron-healthcheck as who runs it sees it: exit code, one line, nothing on standard error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.cli.healthcheck.options import FORMATS
from neurontools.model import EccCounters
from neurontools.testing import DriverTree
from tests.harness.healthcheck import HEALTHCHECK, RunHealthcheck, has_findings
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

HBM_ERROR = EccCounters(0, 1, 0, 0, 0)
CORRECTED = EccCounters(0, 0, 0, 0, 0)


def test_a_host_that_is_well(healthcheck: RunHealthcheck, shared_daemon: RunningDaemon) -> None:
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
    healthcheck: RunHealthcheck, tree: DriverTree, watching: RunningDaemon
) -> None:
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: has_findings(watching))
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


def test_without_a_daemon_the_devices_are_read(healthcheck: RunHealthcheck, tree: DriverTree) -> None:
    assert healthcheck(**tree.environment).stdout == "ok: 1 device is healthy\n"
    tree.set_device(0, ecc=HBM_ERROR)
    assert healthcheck(**tree.environment).returncode == 1


@pytest.mark.parametrize(("name", "code"), [("text", 2), ("json", 2), ("npd", 2), ("nagios", 3)])
def test_where_nothing_can_be_known_that_is_said(
    healthcheck: RunHealthcheck, empty_host: dict[str, str], name: str, code: int
) -> None:
    for done in (
        healthcheck("--format", name, **empty_host),
        healthcheck("--format", name, "--socket", f"{empty_host['NEURONTOOLS_SYSFS_ROOT']}/none.sock"),
    ):
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (code, "", 1)


def test_a_host_whose_driver_is_not_loaded_is_unhealthy_where_devices_are_expected(
    healthcheck: RunHealthcheck, empty_host: dict[str, str]
) -> None:
    done = healthcheck("--expect", "16", **empty_host)
    assert (done.returncode, done.stdout.startswith("critical: 0 of 16 expected devices")) == (1, True)


def test_a_daemon_that_hangs_is_given_up(
    healthcheck: RunHealthcheck, start_daemon: StartDaemon, socket_directory: Path
) -> None:
    hanging = start_daemon("--simulate", "trn1.2xlarge")
    hanging.process.send_signal(signal.SIGSTOP)
    try:
        done = healthcheck("--socket", hanging.socket, "--timeout", "0.5", "--format", "npd")
    finally:
        hanging.process.send_signal(signal.SIGCONT)
    assert done.returncode == 2
    assert done.stdout.startswith("Neuron health is not known: ")


def test_rubbish_in_place_of_a_daemon_is_no_sick_host(healthcheck: RunHealthcheck, short_path: Path) -> None:
    path = short_path / "n.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        command = [sys.executable, str(HEALTHCHECK), "--socket", str(path), "--timeout", "5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            connection = server.accept()[0]
            connection.sendall(b"\x1b[2JHTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()
            out, err = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, err, out.count("\n"), "\x1b" in out) == (2, "", 1, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fromat", "npd"],
        ["--format", "xml"],
        ["--format"],
        ["--level", "ok"],
        ["--problems", "mine"],
        ["--only", "EVERYTHING\x1b[2J"],
        ["--expect", "0"],
        ["--expect", "1e9"],
        ["--timeout", "nan"],
        ["--timeout", "0"],
        ["--node", "a"],
        ["--format", "slurm", "--node", "a;reboot"],
        ["--no-undrain"],
        ["here"],
        ["--socket", "x" * 500],
    ],
)
def test_misuse_is_a_line_and_never_a_sick_host(
    healthcheck: RunHealthcheck, empty_host: dict[str, str], arguments: list[str]
) -> None:
    done = healthcheck(*arguments, **empty_host)
    assert (done.returncode, (done.stderr + done.stdout).count("\n"), "\x1b" in done.stderr) == (2, 1, False)
    nagios = healthcheck("--format", "nagios", *arguments, **empty_host)
    assert nagios.returncode in (2, 3)


def test_misuse_of_the_plugin_for_nagios_is_unknown(healthcheck: RunHealthcheck) -> None:
    assert healthcheck("--format", "nagios", "--level", "high").returncode == 3
    assert healthcheck("--format=nagios", "--level", "high").returncode == 3


def test_a_broken_installation_is_no_sick_host(tmp_path: Path) -> None:
    shutil.copy(HEALTHCHECK, tmp_path / "neuron-healthcheck")
    (tmp_path / "neurontools").mkdir()
    (tmp_path / "neurontools/__init__.py").write_text("raise OSError('gone')")
    command = [sys.executable, str(tmp_path / "neuron-healthcheck")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 2
    assert done.stdout.startswith("health not known: OSError: gone; ")


def test_a_host_that_is_well_costs_no_slow_imports(shared_daemon: RunningDaemon) -> None:
    script = (
        "import os, sys; from neurontools.cli.healthcheck.command import main; os._exit = lambda code: None; main()\n"
        "slow = {'enum', 'functools', 'inspect', 're', 'typing', 'signal', 'neurontools.model.snapshot'}\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, "--socket", shared_daemon.socket],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("ok: all 16 devices are healthy\n", "[]\n")


def test_it_asks_without_protobuf_grpcio_and_torch(shared_daemon: RunningDaemon) -> None:
    look = (
        "import os, sys; from neurontools.cli.healthcheck import command; exit = os._exit\n"
        "os._exit = lambda code: (print(*[m for m in ('google', 'grpc', 'torch', 'subprocess') if m in sys.modules]), "
        "sys.stdout.flush(), exit(code))\n"
        "command.main()"
    )
    command = [sys.executable, "-I", "-c", look, "--socket", shared_daemon.socket]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert (done.stdout, done.stderr) == ("ok: all 16 devices are healthy\n\n", "")
