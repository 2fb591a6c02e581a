"""What the driver says of health, through a real daemon on its tree."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from neurontools import health
from neurontools.model import EccCounters, Finding, Severity
from neurontools.sysfs.exported_device import DEVICE_MAJOR
from neurontools.testing import DriverTree
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

COMPONENTS = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/health_status/unhealthy_components"
CORE = "sys/devices/virtual/neuron_device/neuron{device}/neuron_core{core}/stats"


def found(daemon: RunningDaemon) -> dict[tuple[str, str | None], Finding]:
    judged = daemon.snapshot().health
    assert judged is not None
    return {(finding.kind, finding.part): finding for finding in judged.findings}


def write(tree: DriverTree, device: int, core: int, counter: str, count: int) -> None:
    tree.write(CORE.format(device=device, core=core) + f"/{counter}/total", f"{count}\n")


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text: str = reply.read().decode()
        return text


def test_what_the_driver_reports_as_sick_is_found_measured_and_told_once(start_daemon: StartDaemon, port: int) -> None:
    with DriverTree("trn2.3xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")
        daemon.next_snapshot()
        assert found(daemon) == {}
        tree.write(COMPONENTS, "hbm,link_efa,\x1b[31mnew\n")
        write(tree, 0, 1, "status/hw_hbm_ue_error", 2)
        write(tree, 0, 2, "status/hw_collectives_error", 3)
        write(tree, 0, 3, "status/hw_dma_abort_error", 1)
        for core in range(8):
            write(tree, 0, core, "other_info/reset_fail_count", 1)
        tree.set_device(0, ecc=EccCounters(0, 0, 1, 0, 0))
        kinds = wait_until(lambda: told if len(told := found(daemon)) == 8 else None)
        assert {key: finding.severity for key, finding in kinds.items()} == {
            ("unhealthy_component", "hbm"): Severity.CRITICAL,
            ("unhealthy_component", "link_efa"): Severity.WARNING,
            ("unhealthy_component", "\\x1b[31mnew"): Severity.CRITICAL,
            ("core_errors", "hw_hbm_ue_error"): Severity.CRITICAL,
            ("core_errors", "hw_collectives_error"): Severity.WARNING,
            ("core_errors", "hw_dma_abort_error"): Severity.CRITICAL,
            ("reset_failed", None): Severity.WARNING,
            ("ecc_repairable", "hbm"): Severity.WARNING,
        }
        assert all(finding.device_indices == (0,) and finding.action for finding in kinds.values())
        assert kinds["core_errors", "hw_hbm_ue_error"].reason == (
            "NeuronCore 3: 2 uncorrectable HBM errors since the driver was loaded (hw_hbm_ue_error)"
        ), "the logical core of the driver's core 1"
        text = metrics(port)
        assert 'neurontools_device_unhealthy_component{component="hbm",neuron_device_index="0"} 1' in text
        assert (
            "neurontools_neuroncore_hardware_errors_total"
            '{error="hw_hbm_ue_error",neuron_device_index="0",neuroncore="3"} 2' in text
        )
        assert 'neurontools_device_resets_total{neuron_device_index="0",outcome="failed"} 1' in text
        assert '{event_type="mem_repairable_uncorrected",neuron_device_index="0"} 1' in text
        assert "neurontools_health{finding=" in text
        daemon.next_snapshot(5)
        lines = [line for line in daemon.log.splitlines() if "WARNING: device 0: " in line]  # not of a slow driver
        assert len(lines) == len(set(lines)) == 8, "each once"
        tree.write(COMPONENTS, "\n")
        wait_until(lambda: ("unhealthy_component", "hbm") not in found(daemon) or None)


def test_a_driver_that_tells_no_health_is_not_taken_for_well(start_daemon: StartDaemon, port: int) -> None:
    with DriverTree("trn1.2xlarge", driver_version="2.6.33.0") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")
        snapshot = daemon.next_snapshot()
        assert [verdict.severity for verdict in health.verdicts(snapshot)] == [None]
        command = [sys.executable, str(NEURON_LS), "--socket", daemon.socket, "--health"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (
            7,
            "health of 1 of 1 devices not known: the driver tells nothing of it\n",
        )
        done = subprocess.run([*command, "-j"], capture_output=True, text=True, check=False)
        assert [(each["severity"], each["healthy"]) for each in json.loads(done.stdout)] == [(None, None)]
        text = metrics(port)
        assert "\nneurontools_device_health{" not in text
        assert "\nneurontools_health{" not in text


def test_a_container_misses_only_what_it_was_given(start_daemon: StartDaemon, port: int) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        dev = Path(tree.roots.dev)
        for node in dev.iterdir():
            node.unlink()
        for index in (5, 6):
            try:
                os.mknod(dev / f"neuron{index}", 0o600 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, index))
            except PermissionError:
                pytest.skip("device files take CAP_MKNOD")
        daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")
        snapshot = daemon.next_snapshot()
        assert [(v.device_index, v.severity) for v in health.verdicts(snapshot)] == [(5, Severity.OK), (6, Severity.OK)]
        text = metrics(port)
        for line in ("devices 2", "devices_expected 2", "devices_foreign 14"):
            assert f"\nneurontools_{line}\n" in text
        tree.remove_device(6)
        gone = wait_until(lambda: found(daemon).get(("device_missing", None)))
        assert (gone.device_indices, "this container was given it" in gone.reason) == ((6,), True)
        tree.remove_device(9)  # of somebody else
        daemon.next_snapshot(5)
        assert [finding.device_indices for finding in found(daemon).values()] == [(6,)]
        text = metrics(port)
        for line in ("devices 1", "devices_expected 2"):
            assert f"\nneurontools_{line}\n" in text
        wait_until(lambda: "\nneurontools_devices_foreign 13\n" in metrics(port))


def test_on_a_host_a_device_without_its_file_is_missing_from_the_start(start_daemon: StartDaemon, port: int) -> None:
    """/dev is the kernel's own there, which tells a host from a container that was given the other devices."""
    with DriverTree("trn1.32xlarge") as tree:
        dev = Path(tree.roots.dev)
        for index in range(16):
            try:
                (dev / f"neuron{index}").unlink()
                if index != 3:
                    os.mknod(dev / f"neuron{index}", 0o600 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, index))
            except PermissionError:
                pytest.skip("device files take CAP_MKNOD")
        Path(tree.roots.proc, "self").mkdir(exist_ok=True)
        mounts = [
            "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw",
            "23 22 0:5 / /dev rw,nosuid shared:2 - tmpfs tmpfs rw",
            f"24 22 0:6 / {dev} rw,nosuid shared:3 - devtmpfs devtmpfs rw,size=4096k",
            f"25 24 0:7 / {dev}/shm rw,nosuid shared:4 - tmpfs tmpfs rw",
        ]
        tree.write("proc/self/mountinfo", "\n".join(mounts) + "\n")
        daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")
        daemon.next_snapshot()
        (missing,) = found(daemon).values()
        assert (missing.kind, missing.device_indices, missing.severity) == ("device_missing", (3,), Severity.CRITICAL)
        assert missing.reason.startswith("device 3 is missing: the driver shows it, its device file /dev/neuron3 is")
        text = metrics(port)
        for line in ("devices 15", "devices_expected 16", "devices_foreign 0"):
            assert f"\nneurontools_{line}\n" in text
        os.mknod(dev / "neuron3", 0o600 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, 3))
        wait_until(lambda: not found(daemon))
        (dev / "neuron9").unlink()
        gone = wait_until(lambda: found(daemon).get(("device_missing", None)))
        assert (gone.device_indices, "/dev/neuron9" in gone.reason) == ((9,), True)
        (tree.device_path(9)).rename(tree.device_path(9).with_name("gone"))
        wait_until(lambda: "doesn't show it" in found(daemon)["device_missing", None].reason)
