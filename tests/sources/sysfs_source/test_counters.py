"""What the counters of cores say, and when they say nothing."""

from __future__ import annotations

import pytest

from neurontools.model import DeviceMemory
from neurontools.testing import process_on
from tests.harness.sysfs_source import PID, MakeTree, Open, core_of


def test_total_is_what_is_used_now_and_present_only_the_last_change(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=3000))
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=1000))
    tensors = tree.core_path(0) / "stats/memory_usage/device_mem/tensors"
    assert [(tensors / name).read_text() for name in ("total", "present", "peak")] == ["1000\n", "2000\n", "3000\n"]
    assert core_of(source).memory.tensors_bytes == 1000


def test_counters_that_wait_for_the_drivers_next_update_count_as_measured_when_they_moved(
    make_tree: MakeTree, open_source: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy core would be idle in the one interval and twice as busy in the next."""
    monkeypatch.setattr("neurond.sources.sysfs.device_reader._PATIENCE_SECONDS", float("inf"))
    tree = make_tree("trn1.2xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10"))
    source = open_source(tree)
    tree.set_core(0, executions_total=4, flop_total=7)
    moved, idle = core_of(source), core_of(source, 1)
    again = core_of(source)
    assert again.measured_at_seconds == moved.measured_at_seconds
    assert source.read().processes[0].measured_at_seconds == moved.measured_at_seconds
    assert (core_of(source, 1).measured_at_seconds or 0) > (idle.measured_at_seconds or 0)
    tree.set_core(0, executions_total=8, flop_total=14)
    assert (core_of(source).measured_at_seconds or 0) > (moved.measured_at_seconds or 0)
    monkeypatch.setattr("neurond.sources.sysfs.device_reader._PATIENCE_SECONDS", 0.0)
    assert (core_of(source).measured_at_seconds or 0) > (again.measured_at_seconds or 0)


def test_old_drivers_say_nothing_of_a_core_while_a_process_runs(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = open_source(tree)
    assert core_of(source).busy_seconds_total == 0.0  # nobody is there: idle for certain
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.19.5"))
    for second in range(3):
        tree.set_core(0, busy_seconds_total=float(second), executions_total=second, flop_total=second)
        core = core_of(source)
        assert (core.busy_seconds_total, core.executions_total, core.flop_total) == (None, None, None)
        assert core.owner_pid == PID
    tree.set_processes()  # it ends, and the driver adds its whole run at once
    assert core_of(source).busy_seconds_total is None
    assert core_of(source).busy_seconds_total is None  # the interval of the jump
    assert core_of(source).busy_seconds_total == 2.0


def test_memory_shows_an_owner_whom_we_cannot_see(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = open_source(tree)
    tree.set_core(1, memory=DeviceMemory(tensors_bytes=4096))
    assert core_of(source, 0).busy_seconds_total is None
    assert source.read().processes == ()
    tree.set_core(1, memory=DeviceMemory(driver_memory_bytes=4096))  # the driver's own
    assert core_of(source, 0).busy_seconds_total == 0.0


def test_new_drivers_say_zero_of_an_idle_core_with_an_owner(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.30.2.0")
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.34.10"))
    source = open_source(tree)
    assert core_of(source).busy_seconds_total == 0.0
    assert core_of(source).executions_total == 0


def test_a_counter_that_somebody_cleared(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    tree.set_core(0, flop_total=1000)
    source = open_source(tree)
    path = tree.core_path(0) / "stats/other_info/flop_count/total"
    path.write_text("0\n")
    assert core_of(source).flop_total == 0
    assert "1 counters went back since the start (neuron0 core 0 flop_count)" in str(source.read().warnings)


def test_memory_freed_after_it_was_cleared_wraps_and_is_unknown(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    path = tree.core_path(0) / "stats/memory_usage/device_mem/tensors/total"
    path.write_text(f"{2**64 - 4096}\n")
    assert core_of(source).memory.tensors_bytes is None
