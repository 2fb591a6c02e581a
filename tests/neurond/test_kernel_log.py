"""The daemon's reading of the kernel's log, from files, FIFOs and, where that can be read, the kernel itself."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neurond.system.kernel_log import KernelLog

from neurontools.faults.request import FaultRequest
from neurontools.health import Kind
from neurontools.kernel_log.hardware_error import HardwareError
from neurontools.kernel_log.record import KernelRecord
from neurontools.model import Finding
from neurontools.rpc import faults
from neurontools.testing import DriverTree
from tests.harness.examples import examples
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

TEXT = HardwareError("HBM_UNCORRECTABLE_ERROR", 1, 0).text()


def line(text: str = TEXT, sequence: int = 1) -> bytes:
    return KernelRecord(sequence, int(time.monotonic() * 1e6), text).line()


def texts(log: KernelLog) -> list[str]:
    return [record.text for record in log.read()]


def test_a_file_is_followed_through_cuts_and_replacements(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(line("neuron: nd1: a") + line("eth0: link is up") + line("nd2: b")[:-4])
    log = KernelLog(str(path))
    assert texts(log) == ["neuron: nd1: a"]
    with path.open("ab") as file:
        file.write(b" bb\n" + b" SUBSYSTEM=pci\n")
    assert texts(log)[0].startswith("nd2")
    path.write_bytes(line("nd3: cut"))
    assert [*texts(log), *texts(log)] == ["nd3: cut"]
    (tmp_path / "new").write_bytes(line("nd4: replaced"))
    (tmp_path / "new").replace(path)
    assert [*texts(log), *texts(log), *texts(log)] == ["nd4: replaced"]
    log.close()


def test_a_fifo_is_read_whenever_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(str(path))
    assert texts(log) == []
    for number in range(3):
        with path.open("wb") as writer:
            writer.write(line(f"nd{number}: x"))
            writer.flush()
            assert texts(log) == [f"nd{number}: x"]
        assert texts(log) == []
    log.close()


def test_a_file_that_comes_later_is_found_and_its_lack_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = KernelLog(str(tmp_path / "kmsg"))
    with caplog.at_level(logging.WARNING):
        assert not any(log.read() for _ in range(50))
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/kmsg: the kernel's log is not read: No such file or directory"
    ]
    (tmp_path / "kmsg").write_bytes(line())
    assert [text for _ in range(12) for text in texts(log)] == [TEXT]
    log.close()


def test_what_nobody_asked_for_is_missed_by_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert KernelLog(str(tmp_path / "kmsg"), is_named=False).read() == []
        assert KernelLog(str(tmp_path), is_named=False).read() == []
    assert not caplog.records


def test_a_flood_is_read_in_pieces_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"".join(line(f"nd{number}: {'x' * 200}") for number in range(5000)))
    log = KernelLog(str(path))
    first = texts(log)
    assert 0 < len(first) < 5000
    rest = []
    while more := texts(log):
        rest += more
    assert [int(text[2:].partition(":")[0]) for text in [*first, *rest]] == list(range(5000))
    log.close()


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=100), max_size=8))
def test_rubbish_is_no_record_and_hides_none(tmp_path: Path, rubbish: list[bytes]) -> None:
    path = tmp_path / "kmsg"
    endless = b"nd" * 5000
    path.write_bytes(b"\n".join([*rubbish, endless, b""]) + line())
    log = KernelLog(str(path))
    assert TEXT in texts(log)
    log.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="/dev/kmsg is not for this user")
def test_the_kernel_itself_is_read() -> None:
    text = f"kernel: neurontools-test-{os.getpid()} nd0 is as it was"
    with Path("/dev/kmsg").open("wb", buffering=0) as kernel:
        kernel.write(f"<7>{text}\n".encode())
    log = KernelLog("/dev/kmsg")
    assert wait_until(lambda: [said for said in texts(log) if said == text]) == [text]
    log.close()


def kernel_findings(daemon: RunningDaemon) -> list[Finding]:
    health = daemon.snapshot().health
    found = health.findings if health is not None else ()
    return [finding for finding in found if finding.kind in (Kind.KERNEL_ERROR, Kind.WAS_RESET)]


def test_an_error_is_a_finding_with_device_core_and_process_until_the_driver_is_loaded_anew(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(path))
    attachment = Attachment(daemon)
    attachment.attach()
    wait_until(lambda: daemon.find(os.getpid()))
    with path.open("ab") as kernel:
        kernel.write(line())
    (error,) = wait_until(lambda: kernel_findings(daemon))
    assert (error.device_indices, error.neuroncore_index, error.pids) == ((1,), 2, (os.getpid(),))
    assert (error.part, error.severity.name) == ("HBM_UNCORRECTABLE_ERROR", "CRITICAL")
    attachment.close()
    wait_until(lambda: daemon.find(os.getpid()) is None)
    assert kernel_findings(daemon) == [error]
    assert "the kernel log tells of HBM_UNCORRECTABLE_ERROR on NeuronCore 2" in daemon.log
    with path.open("ab") as kernel:
        kernel.write(line("Neuron Driver Started with Version:2.30"))
    wait_until(lambda: not kernel_findings(daemon))


def test_an_aborted_transfer_is_over_when_the_device_was_reset(start_daemon: StartDaemon, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(
        line(HardwareError("DMA_ERROR", 3, 1).text()) + line("DMA completion timeout on nd03 for x q1 desc count 2")
    )
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(path))
    assert {finding.part for finding in wait_until(lambda: kernel_findings(daemon))} == {"DMA_ERROR", "dma_timeout"}
    with path.open("ab") as kernel:
        kernel.write(line("neuron: nd3: reset request 4 completed"))
    (reset,) = wait_until(lambda: [f for f in kernel_findings(daemon) if f.kind == Kind.WAS_RESET])
    assert kernel_findings(daemon) == [reset]
    assert reset.device_indices == (3,)


def test_the_log_beside_the_devices_that_are_read_is_read(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        Path(tree.roots.dev, "kmsg").write_bytes(line(HardwareError("SRAM_UNCORRECTABLE_ERROR\x1b[2J", 0, 0).text()))
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        (error,) = wait_until(lambda: kernel_findings(daemon))
        assert error.device_indices == (0,)
        assert "\x1b" not in error.reason
        silent = start_daemon(*tree.flags, "--interval", "0.05", "--kmsg", "", name="m.sock")
        silent.next_snapshot()
        assert kernel_findings(silent) == []


def test_what_an_injected_fault_has_logged_says_so_and_is_over_when_it_is_healed(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(path))
    (fault,) = faults.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=1)])
    with path.open("ab") as kernel:
        kernel.write(line() + line(HardwareError("HBM_UNCORRECTABLE_ERROR", 5, 0).text()))
    found = wait_until(lambda: kernel_findings(daemon))
    assert {finding.device_indices: finding.injected for finding in found} == {(1,): True, (5,): False}
    faults.heal(daemon.socket, [fault.number])
    wait_until(lambda: [finding.device_indices for finding in kernel_findings(daemon)] == [(5,)])
