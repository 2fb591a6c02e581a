"""A daemon on a driver's tree: what it follows, what it tells of health, and whose the cores are."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from neurontools.client import Client
from neurontools.driver.environment import Roots
from neurontools.driver.tree_export import DEVICE_MAJOR
from neurontools.model import DeviceMemory, EccCounters, Finding, HostMemory, Severity, Snapshot, SourceKind, health
from neurontools.rpc import neuron_pb2
from neurontools.testing import DriverTree, SimulatedDriver, process_on
from tests.harness import hanging_file
from tests.harness.command import calls
from tests.harness.record_models import Record
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon, starter
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until


def test_the_daemon_follows_the_driver(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        counters = Path(tree.directory) / "sys/class/infiniband/rdmap0s6/ports/1/hw_counters"
        counters.mkdir(parents=True)
        (counters.parent / "state").write_text("4: ACTIVE\n")
        (counters / "rx_bytes").write_text("12345\n")
        daemon: RunningDaemon = start_daemon(*tree.flags, "--interval", "0.05")
        (port,) = wait_until(lambda: daemon.snapshot().host.rdma_ports)
        assert (port.device, port.port, port.state, port.received_bytes_total) == ("rdmap0s6", 1, "ACTIVE", 12345)
        first = daemon.snapshot()
        assert (first.source, first.instance.instance_type) == (SourceKind.SYSFS, "trn1.32xlarge")
        assert first.instance.driver_version == "2.30.2.0"
        assert [process for process in first.processes if process.device_indices] == []
        tree.set_core(2, busy_seconds_total=1.0, memory=DeviceMemory(tensors_bytes=4096))
        wait_until(lambda: daemon.snapshot().cores[2].busy_seconds_total == 1.0)  # a tick reads it before the owner
        tree.set_processes(process_on(4711, "python train.py", cores=(2,), runtime_version="2.34.10"))
        owner = wait_until(lambda: daemon.find(4711))
        assert (owner.core_indices, owner.device_indices, owner.runtime_version) == ((2,), (1,), "2.34.10")
        assert daemon.snapshot().cores[2].memory.tensors_bytes == 4096
        assert [stack.used_bytes for stack in daemon.snapshot().devices[1].hbm_stacks] == [4096, 0]
        assert [core.index for core in daemon.snapshot().cores if core.owner_pid == 4711] == [2]
        wait_until(lambda: daemon.snapshot().cores[2].utilization_ratio == 0.0)
        tree.set_core(2, busy_seconds_total=1.001, memory=DeviceMemory(tensors_bytes=1024))
        wait_until(lambda: daemon.snapshot().cores[2].busy_seconds_total == 1.001)
        tree.remove_device(15)
        wait_until(lambda: len(daemon.snapshot().cores) == 30)
        assert "neuron15 vanished from the driver's tree; look at dmesg" in daemon.snapshot().warnings
        tree.set_processes()
        wait_until(lambda: daemon.find(4711) is None)
        # What the process used is what the driver counted meanwhile.
        with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
            (ended,) = wait_until(lambda: client.ended().processes)
        assert (ended.pid, ended.command, ended.neuroncore_count) == (4711, "python train.py", 1)
        assert ended.busy_seconds_total == pytest.approx(0.001)
        assert ended.peak_device_memory_bytes == 4096
        assert (ended.exit_status, ended.lives_on) == (None, False)
        assert daemon.stop() == 0


def test_what_cannot_be_served_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    empty = tmp_path / "empty"
    with DriverTree("trn1.2xlarge") as tree:
        lnc = "logical NeuronCore configuration 2 is not possible on trn1.2xlarge: use 1\n"
        export = ("--simulate", "inf2.xlarge", "--export-sysfs", str(tmp_path))
        for flags, code, told in (
            (("--sysfs-root", str(empty)), 1, f"no Neuron devices found under {empty}/devices/virtual/neuron_device;"),
            ((*tree.flags, "--lnc", "2"), 2, lnc),
            (export, 2, f"--export-sysfs: {tmp_path} is not empty and holds no exported tree"),
        ):
            command = [sys.executable, "-m", "neurond", *flags, "--socket", str(tmp_path / "s")]
            done = run_to_end(command)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
            assert done.stderr.startswith(f"neurond: {told}")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_exported_tree_is_gone_when_the_daemon_ends(
    start_daemon: StartDaemon, socket_directory: Path, number: signal.Signals
) -> None:
    place = socket_directory / "host"
    daemon = start_daemon("--simulate", "inf2.xlarge", "--interval", "0.05", "--export-sysfs", str(place))
    assert (place / "sys/devices/virtual/neuron_device/neuron0/core_count").read_text() == "2"
    assert daemon.stop(number) == 0
    assert not place.exists()


def test_counters_of_a_simulated_driver_move() -> None:
    with SimulatedDriver("inf2.xlarge", scenario="steady", interval_seconds=0.05) as driver:
        path = Path(Roots.from_environment(driver.environment).devices)
        counter = path / "neuron0/neuron_core0/stats/other_info/nc_time_in_use/total"
        before = int(counter.read_text())
        wait_until(lambda: int(counter.read_text()) > before)
        listed = calls("neuron-ls", os.environ)("-j", "--socket", driver.socket)
        assert len(json.loads(listed.stdout)[0]["neuron_processes"]) == 2
        kept = driver.directory
    assert not Path(kept).exists()


FLAGS = ("--interval", "0.05", "--metrics-listen", "127.0.0.1:0")
COMPONENTS = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/health_status/unhealthy_components"
CORE = "sys/devices/virtual/neuron_device/neuron{device}/neuron_core{core}/stats"


def found(daemon: RunningDaemon) -> dict[tuple[str, str | None], Finding]:
    return {(finding.kind, finding.part): finding for finding in daemon.findings()}


def write(tree: DriverTree, device: int, core: int, counter: str, count: int) -> None:
    tree.write(CORE.format(device=device, core=core) + f"/{counter}/total", f"{count}\n")


def metrics(daemon: RunningDaemon) -> str:
    (address,) = (line.split()[-1] for line in daemon.log.splitlines() if "metrics on" in line)
    with urllib.request.urlopen(address) as reply:
        text: str = reply.read().decode()
        return text


def device_counts(text: str) -> dict[str, int]:
    """Numbers of devices in metrics, by the end of their name."""
    return {
        name: int(count)
        for name, count in re.findall("^neurontools_devices(|_expected|_foreign) (.+)$", text, re.MULTILINE)
    }


def make_nodes(dev: Path, *indices: int) -> None:
    """Device files of the driver in place of all that are there."""
    for node in dev.iterdir():
        node.unlink()
    for index in indices:
        try:
            os.mknod(dev / f"neuron{index}", 0o600 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, index))
        except PermissionError:
            pytest.skip("device files take CAP_MKNOD")


def test_what_the_driver_reports_as_sick_is_found_measured_and_told_once(start_daemon: StartDaemon) -> None:
    with DriverTree("trn2.3xlarge") as tree:
        daemon = start_daemon(*tree.flags, *FLAGS)
        daemon.next_snapshot()
        assert found(daemon) == {}
        tree.write(COMPONENTS, "hbm,link_efa,link_interserver,\x1b[31mnew\n")
        write(tree, 0, 1, "status/hw_hbm_ue_error", 2)
        write(tree, 0, 2, "status/hw_collectives_error", 3)
        write(tree, 0, 3, "status/hw_dma_abort_error", 1)
        for core in range(8):
            write(tree, 0, core, "other_info/reset_fail_count", 1)
        tree.set_device(0, ecc=EccCounters(0, 0, 1, 0, 0))
        kinds = wait_until(lambda: told if len(told := found(daemon)) == 9 else None)
        assert {key: finding.severity for key, finding in kinds.items()} == {
            ("unhealthy_component", "hbm"): Severity.CRITICAL,
            ("unhealthy_component", "link_efa"): Severity.WARNING,
            ("unhealthy_component", "link_interserver"): Severity.WARNING,
            ("unhealthy_component", "\\x1b[31mnew"): Severity.CRITICAL,
            ("core_errors", "hw_hbm_ue_error"): Severity.CRITICAL,
            ("core_errors", "hw_collectives_error"): Severity.WARNING,
            ("core_errors", "hw_dma_abort_error"): Severity.CRITICAL,
            ("reset_failed", None): Severity.WARNING,
            ("ecc_repairable", "hbm"): Severity.WARNING,
        }
        assert all(finding.device_indices == (0,) and finding.action for finding in kinds.values())
        assert "its NeuronLinks to other servers" in kinds["unhealthy_component", "link_interserver"].reason
        assert kinds["core_errors", "hw_hbm_ue_error"].reason == (
            "NeuronCore 3: 2 uncorrectable HBM errors since the driver was loaded (hw_hbm_ue_error)"
        ), "the logical core of the driver's core 1"
        assert ": 1 aborted DMA transfer in the last minutes" in kinds["core_errors", "hw_dma_abort_error"].reason
        text = metrics(daemon)
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
        assert len(lines) == len(set(lines)) == 9, "each once"
        tree.write(COMPONENTS, "\n")
        wait_until(lambda: ("unhealthy_component", "hbm") not in found(daemon) or None)


def test_a_driver_that_tells_no_health_is_not_taken_for_well(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.2xlarge", driver_version="2.6.33.0") as tree:
        daemon = start_daemon(*tree.flags, *FLAGS)
        snapshot = daemon.next_snapshot()
        assert [verdict.severity for verdict in health.verdicts(snapshot)] == [None]
        neuron_ls = calls("neuron-ls", os.environ | {"NEURONTOOLS_SOCKET": daemon.socket})
        done = neuron_ls("--health")
        told = "health of 1 of 1 devices not known: the driver tells nothing of it\n"
        assert (done.returncode, done.stdout) == (7, told)
        done = neuron_ls("--health", "-j")
        assert [(each["severity"], each["healthy"]) for each in json.loads(done.stdout)] == [(None, None)]
        assert not re.search("^neurontools_(device_)?health{", metrics(daemon), re.MULTILINE)


def test_a_file_that_cannot_be_read_makes_the_health_unknown_while_it_lasts(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        daemon = start_daemon(*tree.flags, *FLAGS)
        neuron_ls = calls("neuron-ls", os.environ | {"NEURONTOOLS_SOCKET": daemon.socket})

        def becomes(code: int, text: str) -> None:
            wait_until(lambda: (done := neuron_ls("--health")).returncode == code and text in done.stdout)

        becomes(0, "1 device is healthy")
        write(tree, 0, 0, "status/timeout", 2**64 - 1)
        becomes(7, "neuron0/neuron_core0/stats/status/timeout/total can't be read: its number is too large\n")
        assert not re.search("^neurontools_(device_)?health{", metrics(daemon), re.MULTILINE)
        write(tree, 0, 0, "status/timeout", 0)
        becomes(0, "1 device is healthy")
        path = tree.device_path(0) / "stats/hardware/mem_ecc_uncorrected"
        path.unlink()
        os.mkfifo(path)
        becomes(7, "neuron0/stats/hardware/mem_ecc_uncorrected can't be read: not a regular file\n")
        shutil.rmtree(path.parent)
        becomes(7, "neuron0/stats/hardware/sram_ecc_uncorrected is not in the driver's tree (and 2 more files)\n")
        assert daemon.snapshot().devices[0].ecc == EccCounters()


needs_hanging_files = pytest.mark.skipif(not hanging_file.is_possible(), reason="needs FUSE and private mounts")


@pytest.mark.slow
@needs_hanging_files
def test_a_read_that_never_returns_stops_no_tick_and_no_end(start_daemon: StartDaemon, tmp_path: Path) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        switch = tmp_path / "hangs"
        prefix = hanging_file.prefix(tree.device_path(0) / "stats/hardware/mem_ecc_uncorrected", switch)
        daemon = start_daemon(*tree.flags, *FLAGS, prefix=prefix)
        neuron_ls = calls("neuron-ls", os.environ | {"NEURONTOOLS_SOCKET": daemon.socket})
        wait_until(lambda: neuron_ls("--health").returncode == 0)
        switch.touch()
        unknown = wait_until(lambda: done if (done := neuron_ls("--health")).returncode else None)
        why = "the state of its devices is more than 3 s old, because the driver does not answer"
        assert (unknown.returncode, unknown.stdout) == (7, f"health of 1 of 1 devices not known: {why}\n")
        warning = r"the driver has not answered for \d+ s: the state of the devices is that old"
        assert [bool(re.fullmatch(warning, each)) for each in daemon.next_snapshot(5).warnings] == [True]
        assert not re.search("^neurontools_(device_)?health{", metrics(daemon), re.MULTILINE)
        assert daemon.stop() == 0


@needs_hanging_files
@pytest.mark.slow
def test_a_daemon_whose_first_read_never_returns_says_why_it_does_not_serve(tmp_path: Path) -> None:
    (tmp_path / "hangs").touch()
    with DriverTree("trn1.2xlarge") as tree:
        prefix = hanging_file.prefix(tree.device_path(0) / "core_count", tmp_path / "hangs")
        command = [*prefix, sys.executable, "-m", "neurond", *tree.flags, "--socket", str(tmp_path / "s")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
            assert daemon.stderr is not None
            assert "the driver has not answered for 5 s; neurond serves once it does" in daemon.stderr.readline()
            daemon.terminate()
        assert daemon.returncode == -signal.SIGTERM


def test_a_container_misses_only_what_it_was_given(start_daemon: StartDaemon) -> None:
    with DriverTree("trn1.32xlarge") as tree:
        dev = Path(tree.roots.dev)
        make_nodes(dev, 5, 6)
        daemon = start_daemon(*tree.flags, *FLAGS)
        snapshot = daemon.next_snapshot()
        assert [(v.device_index, v.severity) for v in health.verdicts(snapshot)] == [(5, Severity.OK), (6, Severity.OK)]
        assert device_counts(metrics(daemon)) == {"": 2, "_expected": 2, "_foreign": 14}
        tree.remove_device(6)
        gone = wait_until(lambda: found(daemon).get(("device_missing", None)))
        assert (gone.device_indices, "this container was given it" in gone.reason) == ((6,), True)
        tree.remove_device(9)  # of somebody else
        daemon.next_snapshot(5)
        assert [finding.device_indices for finding in found(daemon).values()] == [(6,)]
        wait_until(lambda: device_counts(metrics(daemon)) == {"": 1, "_expected": 2, "_foreign": 13})


def test_on_a_host_a_device_without_its_file_is_missing_from_the_start(start_daemon: StartDaemon) -> None:
    """/dev is the kernel's own there, which tells a host from a container that was given the other devices."""
    with DriverTree("trn1.32xlarge") as tree:
        dev = Path(tree.roots.dev)
        make_nodes(dev, *(index for index in range(16) if index != 3))
        Path(tree.roots.proc, "self").mkdir(exist_ok=True)
        mounts = [
            "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw",
            "23 22 0:5 / /dev rw,nosuid shared:2 - tmpfs tmpfs rw",
            f"24 22 0:6 / {dev} rw,nosuid shared:3 - devtmpfs devtmpfs rw,size=4096k",
            f"25 24 0:7 / {dev}/shm rw,nosuid shared:4 - tmpfs tmpfs rw",
        ]
        tree.write("proc/self/mountinfo", "\n".join(mounts) + "\n")
        daemon = start_daemon(*tree.flags, *FLAGS)
        daemon.next_snapshot()
        (missing,) = found(daemon).values()
        assert (missing.kind, missing.device_indices, missing.severity) == ("device_missing", (3,), Severity.CRITICAL)
        assert missing.reason.startswith("device 3 is missing: the driver shows it, its device file /dev/neuron3 is")
        assert device_counts(metrics(daemon)) == {"": 15, "_expected": 16, "_foreign": 0}
        os.mknod(dev / "neuron3", 0o600 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, 3))
        wait_until(lambda: not found(daemon))
        (dev / "neuron9").unlink()
        gone = wait_until(lambda: found(daemon).get(("device_missing", None)))
        assert (gone.device_indices, "/dev/neuron9" in gone.reason) == ((9,), True)
        (tree.device_path(9)).rename(tree.device_path(9).with_name("gone"))
        wait_until(lambda: "doesn't show it" in found(daemon)["device_missing", None].reason)


VERSION = "2.34.10"
ALONE, FIRST, SECOND, NAMED, UNNAMED, MONITOR = range(5_000_001, 5_000_007)


@contextmanager
def _shared_devices() -> Iterator[DriverTree]:
    """Device 0: one process; 1: two; 2: one that names core 4, and one that names none; 3: a monitor."""
    with DriverTree("trn1.32xlarge") as made:
        made.set_processes(
            process_on(ALONE, "python alone.py", devices=(0,), runtime_version=VERSION, tag="alone"),
            process_on(FIRST, "python first.py", devices=(1,), runtime_version=VERSION, tag="first"),
            process_on(SECOND, "python second.py", devices=(1,), runtime_version=VERSION, tag="second"),
            process_on(NAMED, "python named.py", cores=(4,), runtime_version=VERSION, tag="named"),
            process_on(UNNAMED, "python unnamed.py", devices=(2,), runtime_version=VERSION, tag="unnamed"),
            process_on(MONITOR, "monitor", devices=(3,)),
        )
        made.set_device(0, host_memory=HostMemory(tensors_bytes=4096, driver_memory_bytes=2**22))
        yield made


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    with _shared_devices() as made:
        yield made


@pytest.fixture
def daemon(tree: DriverTree, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(*tree.flags, *FLAGS)


@pytest.fixture(scope="module")
def still() -> Iterator[RunningDaemon]:
    """A daemon whose tree no test changes."""
    with _shared_devices() as made, TemporaryDirectory(prefix="nd-") as directory:
        started = starter(Path(directory))
        yield next(started)(*made.flags, *FLAGS)
        next(started, None)


def _run(daemon: RunningDaemon, command: str, *arguments: str) -> str:
    done = calls(command, os.environ)(*arguments, NEURONTOOLS_SOCKET=daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_attached_process_owns_the_cores_it_says(daemon: RunningDaemon, tree: DriverTree) -> None:
    def attachable(snapshot: Snapshot) -> list[tuple[int | None, tuple[int, ...], tuple[str, ...]]]:
        return [(core.owner_pid, core.candidate_pids, core.inferred_fields) for core in snapshot.cores[:4]]

    # This process has device 1 open too, and nobody could tell which of its cores it holds.
    here = process_on(os.getpid(), "pytest", devices=(1,), runtime_version=VERSION)
    tree.set_processes(*(process for process in tree.snapshot.processes if process.pid != SECOND), here)
    both = tuple(sorted((os.getpid(), FIRST)))
    wait_until(lambda: daemon.snapshot().cores[2].candidate_pids == both)
    attachment = Attachment(daemon)
    attachment.attach(visible_cores=neuron_pb2.CoreRange(first=3, count=1))
    snapshot = wait_until(lambda: seen if (seen := daemon.snapshot()).cores[3].owner_pid == os.getpid() else None)
    certain = (os.getpid(), (), ())
    assert attachable(snapshot) == [*[(ALONE, (), ("owner_pid",))] * 2, (None, (FIRST,), ()), certain]
    process = next(process for process in snapshot.processes if process.pid == os.getpid())
    assert (process.core_indices, process.device_indices, process.inferred_fields) == ((3,), (1,), ())
    # It can have a core of another's that was only concluded.
    attachment.close()
    wait_until(lambda: daemon.snapshot().cores[3].owner_pid is None)
    attachment = Attachment(daemon)
    attachment.attach(visible_cores=neuron_pb2.CoreRange(first=1, count=1))
    snapshot = wait_until(lambda: seen if (seen := daemon.snapshot()).cores[1].owner_pid == os.getpid() else None)
    assert attachable(snapshot)[:2] == [(ALONE, (), ("owner_pid",)), certain]
    assert next(process for process in snapshot.processes if process.pid == ALONE).core_indices == (0,)
    attachment.close()


@pytest.mark.slow
def test_neuron_ls_shows_who_has_a_device_open_and_what_is_inferred(still: RunningDaemon) -> None:
    devices = json.loads(_run(still, "neuron-ls", "-j"))
    shown = [[process["pid"] for process in device["neuron_processes"]] for device in devices[:4]]
    assert shown == [[ALONE], [FIRST, SECOND], [NAMED, UNNAMED], []]
    fields = "neuroncore.index,neuroncore.held,neuroncore.candidates,process.pid,process.inferred"
    answer = _run(still, "neuron-ls", "--query", fields, "-d", "0,1,2,3").splitlines()[1:]
    assert answer == [
        f"0,yes,-,{ALONE},yes",
        f"1,yes,-,{ALONE},yes",
        f"2,-,{FIRST} {SECOND},-,-",
        f"3,-,{FIRST} {SECOND},-,-",
        f"4,yes,-,{NAMED},no",
        f"5,-,{UNNAMED},-,-",
        "6,no,-,-,-",
        "7,no,-,-,-",
    ]
    assert _run(still, "neuron-ls", "--wait-free", "2").strip() == "6-7", "nobody waits for a core that others may hold"
    assert _run(still, "neuron-ls", "--query", "index,free,pids", "-d", "1,2,3").splitlines()[1:] == [
        f"1,0,{FIRST} {SECOND}",
        f"2,0,{NAMED} {UNNAMED}",
        "3,2,-",
    ]


@pytest.mark.slow
def test_memory_without_a_visible_owner_is_no_free_core(tree: DriverTree, daemon: RunningDaemon) -> None:
    memory = DeviceMemory(tensors_bytes=4096)
    tree.set_cores(lambda core: replace(core, memory=memory) if core.device_index == 3 else core)
    wait_until(lambda: daemon.snapshot().cores[7].memory.tensors_bytes == 4096)
    assert _run(daemon, "neuron-ls", "--wait-free", "2").strip() == "8-9"
    assert _run(daemon, "neuron-ls", "--query", "neuroncore.held", "-d", "3").splitlines()[1:] == ["-", "-"]


def test_neuron_top_marks_what_is_inferred_and_unknown(still: RunningDaemon) -> None:
    document = json.loads(_run(still, "neuron-top", "--json"))
    processes = {process["pid"]: process for process in document["processes"]}
    assert (processes[ALONE]["neuroncores"], processes[ALONE]["are_neuroncores_inferred"]) == ([0, 1], True)
    assert (processes[NAMED]["neuroncores"], processes[NAMED]["are_neuroncores_inferred"]) == ([4], False)
    unknown = (processes[FIRST][name] for name in ("executions_completed_total", "errors_total", "utilization_ratio"))
    assert (*unknown, processes[FIRST]["neuron_devices"]) == (None, None, None, [1])
    cores = document["neuroncores"]
    assert (cores[0]["is_owner_inferred"], cores[2]["candidate_pids"]) == (True, [FIRST, SECOND])


def test_neuron_monitor_has_a_reason_where_nothing_is_known_and_never_null_for_a_whole_number(
    still: RunningDaemon,
) -> None:
    line = _run(still, "neuron-monitor", "--once")
    record: dict[str, Any] = json.loads(line)
    Record.model_validate_json(line)
    reports = {entry["pid"]: entry["report"] for entry in record["neuron_runtime_data"]}
    assert sorted(reports) == [ALONE, FIRST, SECOND, NAMED, UNNAMED]
    stats = reports[FIRST]["execution_stats"]
    assert {*stats["execution_summary"].values(), *stats["error_summary"].values()} == {0}
    assert stats["error"] == (
        f"the NeuronCores of PID {FIRST} are unknown: it has device 1 open, and so have other processes; "
        "set NEURON_RT_VISIBLE_CORES"
    )
    assert reports[ALONE]["execution_stats"]["execution_summary"]["completed"] == 0
    assert reports[ALONE]["execution_stats"]["error"] == ""
    assert reports[FIRST]["memory_used"]["error"] == stats["error"]
    unknown = {pid for pid, report in reports.items() if report["execution_stats"]["error"]}
    assert unknown == {FIRST, SECOND, UNNAMED}
    assert reports[FIRST]["memory_used"]["neuron_runtime_used_bytes"]["neuron_device"] == 0
    assert reports[NAMED]["memory_used"]["neuron_runtime_used_bytes"]["host"] == 0
    assert reports[ALONE]["memory_used"]["neuron_runtime_used_bytes"]["host"] == 4096
    ecc = record["system_data"]["neuron_hw_counters"]["neuron_devices"][0]
    assert (ecc["mem_ecc_uncorrected"], ecc["mem_ecc_corrected"]) == (0, 0)  # Trainium1 doesn't count the latter


def test_metrics_leave_out_what_is_unknown(still: RunningDaemon) -> None:
    lines = [line for line in metrics(still).splitlines() if not line.startswith("#")]

    def labels(name: str, *parts: str) -> list[str]:
        return [line for line in lines if line.startswith(f"{name}{{") and all(part in line for part in parts)]

    owner, held = "neurontools_neuroncore_owner_info", "neurontools_neuroncore_held"
    assert len(labels(owner, f'pid="{ALONE}"', 'inferred="true"')) == 2
    assert len(labels(owner)) == 3
    assert not labels(owner, f'pid="{NAMED}"', "inferred")
    assert len(labels("neurontools_neuroncore_owner_candidate_info", f'pid="{FIRST}"')) == 2
    assert not labels(held, 'neuroncore="2"')
    assert labels(held, 'neuroncore="4"')[0].endswith(" 1")
    assert labels(held, 'neuroncore="6"')[0].endswith(" 0")
    assert not labels("execution_status_total", 'runtime_tag="first"')
    assert labels("execution_status_total", 'runtime_tag="alone"')
    assert not labels("neuron_runtime_memory_used_bytes", 'runtime_tag="named"', 'memory_location="host"')
