"""neurond and neuron-ls on a driver's tree, as processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.model import DeviceMemory, SourceKind
from neurontools.sysfs.roots import Roots
from neurontools.testing import DriverTree, SimulatedDriver, process_on
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until


def test_the_daemon_follows_the_driver(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        daemon: RunningDaemon = start_daemon(*tree.flags, "--interval", "0.05")
        first = daemon.snapshot()
        assert (first.source, first.instance.instance_type) == (SourceKind.SYSFS, "trn1.32xlarge")
        assert first.instance.driver_version == "2.30.2.0"
        assert [process for process in first.processes if process.device_indices] == []
        tree.set_processes(process_on(4711, "python train.py", cores=(2,), runtime_version="2.34.10"))
        tree.set_core(2, memory=DeviceMemory(tensors_bytes=4096))
        owner = wait_until(lambda: daemon.find(4711))
        assert (owner.core_indices, owner.device_indices, owner.runtime_version) == ((2,), (1,), "2.34.10")
        wait_until(
            lambda: daemon.snapshot().cores[2].memory.tensors_bytes == 4096
        )  # read before the owner was looked for
        assert [core.index for core in daemon.snapshot().cores if core.owner_pid == 4711] == [2]
        wait_until(lambda: daemon.snapshot().cores[2].utilization_ratio == 0.0)
        tree.set_core(2, busy_seconds_total=0.001)
        wait_until(lambda: daemon.snapshot().cores[2].busy_seconds_total == 0.001)
        tree.remove_device(15)
        wait_until(lambda: len(daemon.snapshot().cores) == 30)
        assert "neuron15 vanished from the driver's tree; look at dmesg" in daemon.snapshot().warnings
        tree.set_processes()
        wait_until(lambda: daemon.find(4711) is None)
        assert daemon.stop() == 0


def test_what_a_found_process_used_is_what_the_driver_counted(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        tree.set_core(2, busy_seconds_total=1.0, memory=DeviceMemory(tensors_bytes=4096))
        wait_until(lambda: daemon.snapshot().cores[2].busy_seconds_total == 1.0)  # a tick reads it before the owner
        tree.set_processes(process_on(4711, "python train.py", cores=(2,), runtime_version="2.34.10"))
        wait_until(lambda: daemon.find(4711))
        tree.set_core(2, busy_seconds_total=1.001, memory=DeviceMemory(tensors_bytes=1024))
        wait_until(lambda: daemon.snapshot().cores[2].busy_seconds_total == 1.001)
        tree.set_processes()
        with Client(daemon.socket) as client:
            (ended,) = wait_until(lambda: client.ended().processes)
        assert (ended.pid, ended.command, ended.neuroncore_count) == (4711, "python train.py", 1)
        assert ended.busy_seconds_total == pytest.approx(0.001)
        assert ended.peak_device_memory_bytes == 4096
        assert (ended.exit_status, ended.lives_on) == (None, False)


def test_efa_ports_are_those_of_the_tree(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        counters = Path(tree.directory) / "sys/class/infiniband/rdmap0s6/ports/1/hw_counters"
        counters.mkdir(parents=True)
        (counters.parent / "state").write_text("4: ACTIVE\n")
        (counters / "rx_bytes").write_text("12345\n")
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        (port,) = wait_until(lambda: daemon.snapshot().host.rdma_ports)
        assert (port.device, port.port, port.state, port.received_bytes_total) == ("rdmap0s6", 1, "ACTIVE", 12345)


def test_no_devices_is_an_error_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "neurond", "--sysfs-root", str(tmp_path), "--socket", str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"neurond: no Neuron devices found under {tmp_path}/devices/virtual/neuron_device;")


def test_an_lnc_that_the_hardware_cannot_have_is_refused(tmp_path: Path) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        done = subprocess.run(
            [sys.executable, "-m", "neurond", *tree.flags, "--lnc", "2", "--socket", str(tmp_path / "s")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "neurond: logical NeuronCore configuration 2 is not possible on trn1.2xlarge: use 1\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_exported_tree_is_gone_when_the_daemon_ends(
    start_daemon: StartDaemon, socket_directory: Path, number: signal.Signals
) -> None:
    place = socket_directory / "host"
    daemon = start_daemon("--simulate", "inf2.xlarge", "--interval", "0.05", "--export-sysfs", str(place))
    assert (place / "sys/devices/virtual/neuron_device/neuron0/core_count").read_text() == "2"
    assert daemon.stop(number) == 0
    assert not place.exists()


def test_a_tree_cannot_be_exported_over_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "neurond", "--simulate", "inf2.xlarge"),
            *("--socket", str(tmp_path / "s"), "--export-sysfs", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "neurond: --export-sysfs: " in done.stderr
    assert "is not empty and no tree of ours" in done.stderr


def test_counters_of_a_simulated_driver_move() -> None:
    with SimulatedDriver("inf2.xlarge", scenario="steady", interval_seconds=0.05) as driver:
        path = Path(Roots.from_environment(driver.environment).devices)
        counter = path / "neuron0/neuron_core0/stats/other_info/nc_time_in_use/total"
        before = int(counter.read_text())
        wait_until(lambda: int(counter.read_text()) > before)
        listed = subprocess.run(
            [
                sys.executable,
                "-c",
                "from neurontools.cli.ls.command import main; main()",
                "-j",
                "--socket",
                driver.socket,
            ],
            capture_output=True,
            check=True,
        )
        assert len(json.loads(listed.stdout)[0]["neuron_processes"]) == 2
        kept = driver.directory
    assert not Path(kept).exists()
