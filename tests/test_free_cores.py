"""Free NeuronCores: which are selected, and what a program that waits for them is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import client, free_cores
from neurontools.driver.neuron_runtime import parse_visible_cores
from neurontools.model import Snapshot
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS


def with_held(snapshot: Snapshot, cores: Collection[int]) -> Snapshot:
    return replace(
        snapshot, cores=tuple(replace(core, owner_pid=1) if core.index in cores else core for core in snapshot.cores)
    )


def held(instance_type: str, *cores: int) -> Snapshot:
    return with_held(ScenarioHost(instance_type, "idle").at(1), cores)


TRN1 = held("trn1.32xlarge")


def selected(snapshot: Snapshot, count: int, **options: Any) -> tuple[int, int] | None:
    found = free_cores.select(snapshot, count, **options)
    return None if found is None else (found.first, found.last)


@pytest.mark.parametrize(
    ("busy_cores", "count", "found"),
    [
        ((), 1, (0, 0)),
        ((), 2, (0, 1)),
        ((0,), 1, (1, 1)),  # fills the device that is broken already
        ((0,), 2, (2, 3)),  # one device and not two halves
        ((0, 1, 4), 3, (5, 7)),  # 2-3 are free, but not three in a row
        ((), 4, (0, 3)),
        ((0,), 4, (2, 5)),  # devices 1 and 2 are neighbours
        ((*range(6),), 4, (8, 11)),  # devices 3 and 4 are not, 4 and 5 are
        ((*range(0, 32, 2),), 2, None),
        ((*range(31),), 1, (31, 31)),
        ((), 32, (0, 31)),
        ((5,), 32, None),
    ],
)
def test_the_best_are_selected(busy_cores: tuple[int, ...], count: int, found: tuple[int, int] | None) -> None:
    assert selected(with_held(TRN1, busy_cores), count) == found


def test_free_cores_of_devices_that_may_be_used() -> None:
    snapshot = held("trn1.32xlarge", 4)
    assert selected(snapshot, 2, device_indices=(2, 3)) == (6, 7)
    assert selected(snapshot, 2, device_indices=(2,)) is None


def test_free_logical_cores() -> None:
    snapshot = held("trn2.48xlarge", 0)
    assert selected(snapshot, 4) == (4, 7), "half of core 0 is held"
    assert selected(snapshot, 3) == (1, 3)
    assert selected(snapshot, 1, logical_neuroncore_config=1) == (1, 1)
    assert selected(snapshot, 1, logical_neuroncore_config=5) == (1, 1), "an LNC that can't be counts as none"
    assert free_cores.free_indices(snapshot) == frozenset(range(1, 64))
    assert free_cores.free_indices(snapshot, 1) == frozenset(range(1, 128))


@given(st.sets(st.integers(0, 31)), st.integers(1, 32))
def test_what_is_found_is_free_and_found_when_there_is_any(busy_cores: set[int], count: int) -> None:
    found = selected(with_held(TRN1, busy_cores), count)
    runs = [all(core not in busy_cores for core in range(first, first + count)) for first in range(33 - count)]
    assert (found is not None) == any(runs)
    if found is not None:
        assert found[1] - found[0] + 1 == count
        assert runs[found[0]]


def test_nobody_is_sent_to_a_device_that_is_stuck() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=1)
    host.at(5)
    assert free_cores.select(host.at(400), 1) == free_cores.CoreRange(2, 1)


def test_a_range_is_written_as_the_runtime_reads_it() -> None:
    for cores, text in ((free_cores.CoreRange(3, 1), "3"), (free_cores.CoreRange(4, 4), "4-7")):
        assert str(cores) == text
        assert parse_visible_cores(text) == (cores.first, cores.count)
        assert list(cores.indices) == list(range(cores.first, cores.last + 1))


@pytest.mark.parametrize(
    ("count", "devices", "lnc", "text"),
    [
        (65, (), None, "this host has 64 NeuronCores; 65 will never be free"),
        (129, (), 1, "this host has 128 NeuronCores; 129 will never be free"),
        (9, (0, 1, 5, 99), None, "these devices have 8 NeuronCores in a row; 9 will never be free"),
        (1, (99,), None, "these devices have 0 NeuronCores in a row; 1 will never be free"),
    ],
)
def test_what_can_never_be_is_told(count: int, devices: tuple[int, ...], lnc: int | None, text: str) -> None:
    snapshot = held("trn2.48xlarge", *range(128))
    with pytest.raises(free_cores.NeverFree) as raised:
        free_cores.select(snapshot, count, device_indices=devices, logical_neuroncore_config=lnc)
    assert str(raised.value) == text
    with pytest.raises(ValueError, match="count=0: not a number of NeuronCores"):
        free_cores.select(snapshot, 0)


def test_waiting_ends_when_the_cores_are_free(daemon: RunningDaemon) -> None:
    attachment = Attachment(daemon)
    attachment.attach()
    with pytest.raises(free_cores.NotFree, match=r"no 2 NeuronCores in a row became free in 0 s; neuron-ls shows who"):
        free_cores.wait(2, socket=daemon.socket, timeout_seconds=0)
    found: list[free_cores.CoreRange] = []
    thread = threading.Thread(target=lambda: found.append(free_cores.wait(2, socket=daemon.socket)))
    thread.start()
    attachment.close()
    thread.join()
    assert found == [free_cores.CoreRange(0, 2)]
    assert free_cores.wait(2, socket=daemon.socket, device_indices=(3,), timeout_seconds=HANG_SECONDS).first == 6


def test_cores_are_counted_by_the_lnc_of_the_environment(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.48xlarge")
    assert free_cores.wait(64, socket=daemon.socket, environment={}).count == 64
    with pytest.raises(free_cores.NeverFree):
        free_cores.wait(65, socket=daemon.socket, environment={})
    lnc = {"NEURON_LOGICAL_NC_CONFIG": "1"}
    assert str(free_cores.wait(128, socket=daemon.socket, environment=lnc)) == "0-127"


def test_a_daemon_that_is_restarted_meanwhile_is_waited_for(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    with client.connect(first.socket, timeout_seconds=HANG_SECONDS) as daemon:
        pids: list[int] = []
        seen = threading.Event()

        def look(snapshot: Snapshot) -> bool | None:
            seen.set()
            if snapshot.daemon_pid == first.pid:
                return None
            pids.append(snapshot.daemon_pid)
            return True

        answers: list[bool | None] = []
        thread = threading.Thread(target=lambda: answers.append(free_cores.wait_until(look, daemon)))
        thread.start()
        assert seen.wait(HANG_SECONDS)
        first.stop(signal.SIGKILL)
        second = start_daemon()
        thread.join()
        assert (answers, pids) == ([True], [second.pid])


def test_without_a_daemon_nobody_waits(tmp_path: Path) -> None:
    with pytest.raises(client.NoDaemon):
        free_cores.wait(1, socket=f"{tmp_path}/n.sock")
