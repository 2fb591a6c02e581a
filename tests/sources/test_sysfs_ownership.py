"""Whose the cores are where only open devices can be seen: what is certain, what is concluded, what stays unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from neurond.sources.sysfs import SysfsSource

from neurontools.model import DeviceMemory, HostMemory, Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.testing import DriverTree, process_on
from tests.harness.record_models import Record
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

VERSION = "2.34.10"
ALONE, FIRST, SECOND, NAMED, UNNAMED, MONITOR = range(5_000_001, 5_000_007)


@pytest.fixture
def tree() -> Iterator[DriverTree]:
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
def daemon(tree: DriverTree, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(*tree.flags, "--interval", "0.05")


def _run(daemon: RunningDaemon, module: str, *arguments: str) -> str:
    code = f"from neurontools.cli.{module}.command import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, *(["--socket", daemon.socket] if module != "ls" else [])],
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_cores_are_certain_concluded_or_unknown(tree: DriverTree) -> None:
    source = SysfsSource(tree.roots)
    source.refresh()
    reading = source.read()
    source.close()
    shown = [(core.owner_pid, core.candidate_pids, core.inferred_fields) for core in reading.cores[:8]]
    assert shown == [
        *[(ALONE, (), ("owner_pid",))] * 2,
        *[(None, (FIRST, SECOND), ())] * 2,
        (NAMED, (), ()),
        (None, (UNNAMED,), ()),
        *[(None, (), ())] * 2,
    ]
    processes = {process.pid: process for process in reading.processes}
    assert {pid: (process.core_indices, process.inferred_fields) for pid, process in processes.items()} == {
        ALONE: ((0, 1), ("core_indices",)),
        FIRST: ((), ()),
        SECOND: ((), ()),
        NAMED: ((4,), ()),
        UNNAMED: ((), ()),
        MONITOR: ((), ()),
    }
    told = {pid for pid, process in processes.items() if process.executions is not None and process.errors is not None}
    assert told == {ALONE, NAMED}
    # The driver counts host memory by device: it is of one process only where that has the device for itself.
    assert processes[ALONE].host_memory.tensors_bytes == 4096
    assert processes[ALONE].host_memory.driver_memory_bytes is None
    assert processes[NAMED].host_memory.total_bytes is None


def test_before_live_counters_nobody_tells_what_a_process_executes() -> None:
    with DriverTree("trn1.2xlarge", driver_version="2.24.7.0") as tree:
        tree.set_processes(process_on(NAMED, "python", cores=(0,), runtime_version=VERSION))
        source = SysfsSource(tree.roots)
        source.refresh()
        (process,) = source.read().processes
        source.close()
    assert (process.executions, process.errors) == (None, None)


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


def test_neuron_ls_shows_who_has_a_device_open_and_what_is_inferred(daemon: RunningDaemon) -> None:
    devices = json.loads(_run(daemon, "ls", "-j"))
    shown = [[process["pid"] for process in device["neuron_processes"]] for device in devices[:4]]
    assert shown == [[ALONE], [FIRST, SECOND], [NAMED, UNNAMED], []]
    fields = "neuroncore.index,neuroncore.held,neuroncore.candidates,process.pid,process.inferred"
    answer = _run(daemon, "ls", "--query", fields, "-d", "0,1,2,3").splitlines()[1:]
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
    assert _run(daemon, "ls", "--query", "index,free,pids", "-d", "1,2,3").splitlines()[1:] == [
        f"1,0,{FIRST} {SECOND}",
        f"2,0,{NAMED} {UNNAMED}",
        "3,2,-",
    ]


def test_nobody_waits_for_a_core_that_others_may_hold(daemon: RunningDaemon) -> None:
    assert _run(daemon, "ls", "--wait-free", "2").strip() == "6-7"


def test_memory_without_a_visible_owner_is_no_free_core(tree: DriverTree, daemon: RunningDaemon) -> None:
    tree.set_cores(
        lambda core: replace(core, memory=DeviceMemory(tensors_bytes=4096)) if core.device_index == 3 else core
    )
    wait_until(lambda: daemon.snapshot().cores[7].memory.tensors_bytes == 4096)
    assert _run(daemon, "ls", "--wait-free", "2").strip() == "8-9"
    assert _run(daemon, "ls", "--query", "neuroncore.held", "-d", "3").splitlines()[1:] == ["-", "-"]


def test_neuron_top_marks_what_is_inferred_and_unknown(daemon: RunningDaemon) -> None:
    document = json.loads(_run(daemon, "top", "--json"))
    processes = {process["pid"]: process for process in document["processes"]}
    assert (processes[ALONE]["neuroncores"], processes[ALONE]["are_neuroncores_inferred"]) == ([0, 1], True)
    assert (processes[NAMED]["neuroncores"], processes[NAMED]["are_neuroncores_inferred"]) == ([4], False)
    unknown = (processes[FIRST][name] for name in ("executions_completed_total", "errors_total", "utilization_ratio"))
    assert (*unknown, processes[FIRST]["neuron_devices"]) == (None, None, None, [1])
    cores = document["neuroncores"]
    assert (cores[0]["is_owner_inferred"], cores[2]["candidate_pids"]) == (True, [FIRST, SECOND])


def test_neuron_monitor_has_a_reason_where_nothing_is_known_and_never_null_for_a_whole_number(
    daemon: RunningDaemon,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from neurontools.cli.monitor.command import main; main()", "--socket", daemon.socket],
        stdout=subprocess.PIPE,
        text=True,
    ) as monitor:
        assert monitor.stdout is not None
        line = monitor.stdout.readline()
        record: dict[str, Any] = json.loads(line)
        monitor.terminate()
    Record.model_validate_json(line)
    reports = {entry["pid"]: entry["report"] for entry in record["neuron_runtime_data"]}
    assert sorted(reports) == [ALONE, FIRST, SECOND, NAMED, UNNAMED]
    stats = reports[FIRST]["execution_stats"]
    assert {*stats["execution_summary"].values(), *stats["error_summary"].values()} == {0}
    assert stats["error"] == (
        f"which NeuronCores PID {FIRST} holds is unknown: it has device 1 open, and so have others; "
        "NEURON_RT_VISIBLE_CORES would tell"
    )
    assert reports[ALONE]["execution_stats"]["execution_summary"]["completed"] == 0
    assert reports[ALONE]["execution_stats"]["error"] == ""
    assert reports[FIRST]["memory_used"]["error"] == stats["error"]
    assert reports[FIRST]["memory_used"]["neuron_runtime_used_bytes"]["neuron_device"] == 0
    assert reports[NAMED]["memory_used"]["neuron_runtime_used_bytes"]["host"] == 0
    assert reports[ALONE]["memory_used"]["neuron_runtime_used_bytes"]["host"] == 4096
    ecc = record["system_data"]["neuron_hw_counters"]["neuron_devices"][0]
    assert (ecc["mem_ecc_uncorrected"], ecc["mem_ecc_corrected"]) == (0, 0)  # Trainium1 doesn't count the latter


def test_metrics_leave_out_what_is_unknown(tree: DriverTree, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", "127.0.0.1:0")
    (address,) = (line.split()[-1] for line in daemon.log.splitlines() if "metrics on" in line)
    with urllib.request.urlopen(address) as reply:
        text = reply.read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]

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


def test_a_device_that_vanished_is_missing_everywhere_and_breaks_nothing(
    tree: DriverTree, start_daemon: StartDaemon
) -> None:
    """Its cores leave a gap: whoever takes a position for an index shows another core's numbers."""
    daemon = start_daemon(*tree.flags, "--interval", "0.05", "--metrics-listen", "127.0.0.1:0")
    last = process_on(MONITOR + 1, "python", cores=tuple(range(8, 32)), runtime_version=VERSION, tag="last")
    tree.set_processes(last)
    tree.set_core(31, memory=DeviceMemory(tensors_bytes=12345))
    tree.remove_device(3)
    wait_until(lambda: len(daemon.snapshot().devices) == 15)
    wait_until(lambda: seen if (seen := daemon.find(last.pid)) and seen.core_indices else None)
    assert len(json.loads(_run(daemon, "ls", "-j"))) == 15
    document = json.loads(_run(daemon, "top", "--json"))
    assert [device["neuron_device"] for device in document["devices"]] == [*range(3), *range(4, 16)]
    assert document["devices"][-1]["memory_used_bytes"] == 12345
    (address,) = (line.split()[-1] for line in daemon.log.splitlines() if "metrics on" in line)
    with urllib.request.urlopen(address) as reply:
        text = reply.read().decode()
    assert "neurontools_devices 15" in text
    assert any('neuroncore="31"' in line and line.endswith(" 12345") for line in text.splitlines())
    screen = _run(daemon, "top", "--once")
    assert "ND3✗ missing" in screen
