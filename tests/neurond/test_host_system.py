"""What the daemon reads of its host and itself: vCPUs, jobs, the kernel's log, turns of the event loop, free memory."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neurond.service.server import MemoryTrimmer, trim_memory
from neurond.system.host_metrics import HostReader
from neurond.system.kernel_log import KernelLogReader
from neurond.system.lifecycle import timed_loop, turns
from neurond.system.processes import JobReader, group_of

from neurontools.driver.kernel_log import HardwareError, KernelRecord
from neurontools.faults.requests import FaultRequest
from neurontools.model import Job
from neurontools.model.finding import FindingKind
from neurontools.rpc import fault_calls
from neurontools.testing import DriverTree
from neurontools.util.process_text import script_name
from tests.harness.attached_process import AttachedProcess
from tests.harness.examples import examples
from tests.harness.json_lines import audit_entries
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until
from tests.harness.web_site import Site


def test_the_host_itself_is_read() -> None:
    reader = HostReader()
    host, warnings = reader.read()
    assert warnings == ()
    assert host.vcpu_count == len(host.vcpu_times) == os.cpu_count()
    assert host.vcpu_average is None, "there was no read before"
    assert host.memory_total_bytes == psutil.virtual_memory().total
    assert host.memory_used_bytes is not None
    assert 0 < host.memory_used_bytes < host.memory_total_bytes
    assert host.swap_total_bytes is not None
    assert host.context_switches_total is not None
    usage = wait_until(lambda: reader.read()[0].vcpu_average)
    counted = sum(times.user_seconds_total or 0 for times in reader.read()[0].vcpu_times)
    assert counted == pytest.approx(psutil.cpu_times().user, rel=0.05)
    shares = [getattr(usage, name) for name in usage.__slots__]
    assert sum(shares) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("function", "error", "unknown", "known"),
    [
        ("virtual_memory", OSError(13, "Permission denied"), "memory_total_bytes", "vcpu_count"),
        ("swap_memory", RuntimeError("no swap"), "swap_total_bytes", "memory_total_bytes"),
        ("cpu_times", psutil.AccessDenied(), "vcpu_count", "memory_total_bytes"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_a_warning(
    function: str, error: Exception, unknown: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(psutil, function, fail)
    host, warnings = HostReader().read()
    assert getattr(host, unknown) is None
    assert getattr(host, known) is not None
    (warning,) = warnings
    assert "of the host can't be read: " in warning


@pytest.mark.parametrize("is_session", [True, False])
def test_ranks_of_a_launcher_are_a_job(shared_daemon: RunningDaemon, is_session: bool) -> None:
    """torchrun gives its workers sessions of their own; a shell's background jobs share a process group."""
    with ExitStack() as ending:
        for rank in range(2):
            environment = {"RANK": str(rank), "WORLD_SIZE": "2"}
            started = AttachedProcess(shared_daemon, "1", environment=environment, new_session=is_session)
            ending.enter_context(started)
            process = shared_daemon.find(started.pid)
            assert process is not None
            name = f"{script_name(process.command.split())} ({os.getpid() if is_session else os.getpgrp()})"
            assert process.job == Job(name, rank, 2)


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (b"7 (a) b) c) S 5 6 6 0 -1", 6),
        (b"7 (x) S 5 7 7 0", 5),
        (b"7 (x) S 1 7 7 0", 7),  # init launches no jobs
        *((text, 0) for text in (b"", b"7", b"7 (x) S", b"7 (x) S a b c", b"7 (x) S 0 0 0")),
    ],
)
def test_what_a_stat_file_may_hold(text: bytes, group: int) -> None:
    assert group_of(7, text) == group


def test_jobs_stay_known_when_processes_with_and_without_a_script_name_end(tmp_path: Path) -> None:
    """A process that ended before its first read has no command line, so its group has no name."""
    reader = JobReader(str(tmp_path))

    def read_job(pid: int, command: bytes) -> Job | None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_bytes(b"%d (x) S 1 %d 1 0" % (pid, pid))
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
        return reader.job_of(pid, None)

    for pid, command in ((3, b"python\0a.py"), (4, b"python\0b.py"), (5, b"python\0c.py"), (6, b"")):
        read_job(pid, command)
    reader.forget_others((5, 6))
    assert [reader.job_of(pid, None) for pid in (5, 6)] == [Job("c.py (5)"), Job("process group 6")]
    reader.forget_others((6,))
    assert read_job(5, b"python\0other.py") == Job("other.py (5)"), "another process has got the PID"


def test_a_synthetic_load_is_one_job_and_the_daemon_tells_its_longest_turn(
    start_daemon: StartDaemon, port: int
) -> None:
    flags = ("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.05")
    daemon = start_daemon(*flags, "--metrics-listen", f"127.0.0.1:{port}")
    jobs = [process.job for process in daemon.next_snapshot().processes]
    assert jobs == [Job("synthetic load steady", 0, 2), Job("synthetic load steady", 1, 2)]
    _, _, text = Site(port).ask("/metrics")
    told = re.search(r"^neurontools_daemon_longest_turn_cpu_seconds (\S+)$", text, re.MULTILINE)
    assert told
    assert 0 < float(told[1]) < 10


def test_a_turn_is_all_that_is_ready_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "longest_cpu_seconds", None)

    def spin(cpu_seconds: float) -> None:
        end_seconds = time.thread_time() + cpu_seconds
        while time.thread_time() < end_seconds:
            pass

    async def run() -> None:
        spin(0.2)  # before it begins to serve
        turns.begin()
        for _ in range(2):
            asyncio.get_running_loop().call_soon(spin, 0.03)
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=timed_loop) as runner:
        runner.run(run())
    assert turns.longest_cpu_seconds is not None
    assert 0.06 <= turns.longest_cpu_seconds < 0.2


@pytest.mark.parametrize(
    ("connections", "freed_at"),
    [
        ([min(tenth, 30) * 100 for tenth in range(100)], [40]),  # the last ends in the 30th tenth
        ([tenth // 10 * 100 for tenth in range(400)], [110, 220, 330]),  # what comes and goes is no reason to wait
        ([min(tenth // 10, 49) for tenth in range(10_000)], []),  # a few free nothing
    ],
)
def test_memory_is_freed_once_when_a_flood_has_ended(connections: list[int], freed_at: list[int]) -> None:
    """Connections that have ended so far, at each tenth of a second."""
    freed: list[int] = []
    floods = MemoryTrimmer(lambda: freed.append(tenth))
    for tenth, ended_total in enumerate(connections):
        floods.update(ended_total, tenth / 10)
    assert freed == freed_at


def test_what_is_free_goes_back_to_the_system() -> None:
    def resident_bytes() -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{os.getpid()}/status").read_text("ascii"))
        assert found
        return int(found[1]) * 1024

    pieces = [bytes([1]) * 8000 for _ in range(5000)]
    high_bytes, kept = resident_bytes(), pieces[::500]  # what stays is between what goes, so nothing goes by itself
    del pieces
    trim_memory()
    assert resident_bytes() < high_bytes - 30_000_000
    assert len(kept) == 10


KERNEL = (FindingKind.KERNEL_ERROR, FindingKind.WAS_RESET)
TEXT = HardwareError("HBM_UNCORRECTABLE_ERROR", 1, 0).text()


def line(text: str = TEXT, sequence: int = 1) -> bytes:
    return KernelRecord(sequence, int(time.monotonic() * 1e6), text).line()


def texts(log: KernelLogReader) -> list[str]:
    return [record.text for record in log.read()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


def add(path: Path, *texts: str) -> None:
    with path.open("ab") as kernel:
        kernel.write(b"".join(map(line, texts)))


def test_a_file_is_followed_through_cuts_and_replacements(path: Path) -> None:
    path.write_bytes(line("neuron: nd1: a") + line("eth0: link is up") + line("nd2: b")[:-4])
    log = KernelLogReader(str(path))
    assert texts(log) == ["neuron: nd1: a"]
    with path.open("ab") as file:
        file.write(b" bb\n" + b" SUBSYSTEM=pci\n")
    assert texts(log)[0].startswith("nd2")
    path.write_bytes(line("nd3: cut"))
    assert [*texts(log), *texts(log)] == ["nd3: cut"]
    new = path.with_name("new")
    add(new, "nd4: replaced")
    new.replace(path)
    assert [*texts(log), *texts(log), *texts(log)] == ["nd4: replaced"]
    log.close()


def test_a_fifo_is_read_whenever_somebody_writes(path: Path) -> None:
    os.mkfifo(path)
    log = KernelLogReader(str(path))
    assert texts(log) == []
    for number in range(3):
        with path.open("wb") as writer:
            writer.write(line(f"nd{number}: x"))
            writer.flush()
            assert texts(log) == [f"nd{number}: x"]
        assert texts(log) == []
    log.close()


def test_a_file_that_comes_later_is_found_and_its_lack_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = KernelLogReader(str(path))
    with caplog.at_level(logging.WARNING):
        assert not any(log.read() for _ in range(50))
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: the kernel log is not read: No such file or directory"
    ]
    add(path, TEXT)
    assert [text for _ in range(12) for text in texts(log)] == [TEXT]
    log.close()


def test_what_nobody_asked_for_is_missed_by_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert KernelLogReader(str(tmp_path / "kmsg"), is_named=False).read() == []
        assert KernelLogReader(str(tmp_path), is_named=False).read() == []
    assert not caplog.records


def test_a_flood_is_read_in_pieces_and_loses_nothing(path: Path) -> None:
    add(path, *(f"nd{number}: {'x' * 200}" for number in range(1500)))
    log = KernelLogReader(str(path))
    first = texts(log)
    assert 0 < len(first) < 1500
    rest = []
    while more := texts(log):
        rest += more
    assert [int(text[2:].partition(":")[0]) for text in [*first, *rest]] == list(range(1500))
    log.close()


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=100), max_size=8))
def test_rubbish_is_no_record_and_hides_none(path: Path, rubbish: list[bytes]) -> None:
    path.write_bytes(b"\n".join([*rubbish, b"nd" * 5000, b""]) + line())
    log = KernelLogReader(str(path))
    assert TEXT in texts(log)
    log.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="/dev/kmsg is not for this user")
def test_the_kernel_itself_is_read() -> None:
    text = f"kernel: neurontools-test-{os.getpid()} nd0 is as it was"
    with Path("/dev/kmsg").open("wb", buffering=0) as kernel:
        kernel.write(f"<7>{text}\n".encode())
    log = KernelLogReader("/dev/kmsg")
    assert wait_until(lambda: [said for said in texts(log) if said == text]) == [text]
    log.close()


@pytest.fixture
def daemon(start_daemon: StartDaemon, path: Path) -> RunningDaemon:
    """A daemon that reads `path`."""
    path.touch()
    return start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(path))


def test_an_error_is_a_finding_with_device_core_and_process_until_the_driver_is_loaded_anew(
    daemon: RunningDaemon, attached: Attachment, path: Path
) -> None:
    attached.attach()
    wait_until(lambda: daemon.find(os.getpid()))
    add(path, TEXT)
    (error,) = wait_until(lambda: daemon.findings(*KERNEL))
    assert (error.device_indices, error.neuroncore_index, error.pids) == ((1,), 2, (os.getpid(),))
    assert (error.part, error.severity.name) == ("HBM_UNCORRECTABLE_ERROR", "CRITICAL")
    attached.close()
    wait_until(lambda: daemon.find(os.getpid()) is None)
    assert daemon.findings(*KERNEL) == [error]
    assert "the kernel log reports HBM_UNCORRECTABLE_ERROR on NeuronCore 2" in daemon.log
    add(path, "Neuron Driver Started with Version:2.30")
    wait_until(lambda: not daemon.findings(*KERNEL))


def test_an_aborted_transfer_is_over_when_the_device_was_reset(daemon: RunningDaemon, path: Path) -> None:
    add(path, HardwareError("DMA_ERROR", 3, 1).text(), "DMA completion timeout on nd03 for x q1 desc count 2")
    wait_until(lambda: {finding.part for finding in daemon.findings(*KERNEL)} == {"DMA_ERROR", "dma_timeout"})
    add(path, "neuron: nd3: reset request 4 completed")
    (reset,) = wait_until(lambda: daemon.findings(FindingKind.WAS_RESET))
    assert daemon.findings(*KERNEL) == [reset]
    assert reset.device_indices == (3,)


def test_records_of_programs_count_only_where_a_setting_says_so_and_the_audit_has_them(
    start_daemon: StartDaemon, path: Path, tmp_path: Path
) -> None:
    path.touch()
    configuration = tmp_path / "neurond.toml"
    configuration.write_text("[daemon]\nkmsg_user_records = true\n")
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(path))
    strict = start_daemon(*flags, "--state-directory", str(tmp_path / "strict"))
    lenient = start_daemon(*flags, "--config", str(configuration), name="lenient.sock")
    forged, real = (HardwareError("HBM_UNCORRECTABLE_ERROR", device, 0).text() for device in (1, 2))
    with path.open("ab") as kernel:
        for facility in (1, 3, 2**20):  # user, daemon, and one that no program knows
            kernel.write(KernelRecord(7, 1, forged, facility=facility).line())
        kernel.write(KernelRecord(8, 1, real).line())
    assert wait_until(lambda: devices_of(strict)) == [(2,)]
    assert wait_until(lambda: devices_of(lenient)) == [(1,), (2,)]
    assert devices_of(strict) == [(2,)]
    wait_until(lambda: len(audit_entries(tmp_path / "strict", "kernel_record")) == 4)
    records = audit_entries(tmp_path / "strict", "kernel_record")
    assert [(each["facility"], each["device_index"], each["counted"]) for each in records] == [
        *((1, 1, False), (3, 1, False), (2**20, 1, False)),
        (0, 2, True),
    ]
    assert strict.log.count("a hardware error that a program wrote; it does not count") == 1


def devices_of(daemon: RunningDaemon) -> list[tuple[int, ...]]:
    return sorted(finding.device_indices for finding in daemon.findings(*KERNEL))


def test_the_log_beside_the_devices_that_are_read_is_read(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        add(Path(tree.roots.dev, "kmsg"), HardwareError("SRAM_UNCORRECTABLE_ERROR\x1b[2J", 0, 0).text())
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        (error,) = wait_until(lambda: daemon.findings(*KERNEL))
        assert error.device_indices == (0,)
        assert "\x1b" not in error.reason
        silent = start_daemon(*tree.flags, "--interval", "0.05", "--kmsg", "", name="m.sock")
        silent.next_snapshot()
        assert silent.findings(*KERNEL) == []


def test_what_an_injected_fault_has_logged_says_so_and_is_over_when_it_is_healed(
    daemon: RunningDaemon, path: Path
) -> None:
    (fault,) = fault_calls.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=1)])
    add(path, TEXT, HardwareError("HBM_UNCORRECTABLE_ERROR", 5, 0).text())
    found = wait_until(lambda: daemon.findings(*KERNEL))
    assert {finding.device_indices: finding.injected for finding in found} == {(1,): True, (5,): False}
    fault_calls.heal(daemon.socket, [fault.number])
    wait_until(lambda: [finding.device_indices for finding in daemon.findings(*KERNEL)] == [(5,)])
