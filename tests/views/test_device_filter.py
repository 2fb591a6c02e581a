"""What is left of a host of which only a part is to be seen."""

from __future__ import annotations

from dataclasses import replace

from neurontools.model import EndedProcess, health
from neurontools.views.drawing.figures import DeviceFilter, Figures
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import process_of

HOST = ScenarioHost("trn1.32xlarge", "steady").at(30.0)
LNC = ScenarioHost("trn2.48xlarge", "steady").at(30.0)


def test_all_is_shown_unless_something_is_asked_for() -> None:
    assert not DeviceFilter()
    assert DeviceFilter().filter_snapshot(HOST) is HOST
    assert not DeviceFilter().filtered_figures(HOST).hidden_devices


def test_devices_by_index_and_address() -> None:
    address = HOST.devices[3].bdf
    assert address is not None
    numbered = replace(HOST, devices=tuple(replace(each, serial_number=f"{each.index:016x}") for each in HOST.devices))
    part = DeviceFilter(device_names=frozenset((f"{3:016x}",))).filter_snapshot(numbered)
    assert [device.index for device in part.devices] == [3]
    device_filter = DeviceFilter(frozenset((1,)), frozenset((address,)))
    figures = device_filter.filtered_figures(HOST)
    assert [core.index for core in figures.cores] == [2, 3, 6, 7]
    held = [index for each in figures.by_pid.values() for index in each.process.neuroncore_indices]
    assert sorted(held) == [2, 3, 6, 7]
    assert figures.hidden_devices == set(range(16)) - {1, 3}
    assert not figures.missing_devices
    assert [device.index for device in figures.snapshot.devices] == list(range(16))
    part = device_filter.filter_snapshot(HOST)
    assert [device.index for device in part.devices] == [1, 3]
    assert [verdict.device_index for verdict in health.verdicts(part)] == [1, 3]
    memory = sum(core.memory.total_bytes or 0 for core in HOST.cores if core.device_index in (1, 3))
    assert figures.device_memory(None).total_bytes == memory
    assert {core.device_index for core in device_filter.filtered_figures(HOST, frozenset((1, 5))).cores} == {3}, (
        "hidden on top"
    )


def test_a_missing_device_is_selected_and_hidden_as_any_other_and_a_foreign_one_is_not_missing() -> None:
    lacking = replace(HOST, devices=HOST.devices[4:15], cores=HOST.cores[8:30])
    assert sorted(Figures(lacking).missing_devices) == [0, 1, 2, 3, 15]
    for device_filter in (DeviceFilter(frozenset((15, 14))), DeviceFilter(first_core=29, core_count=3)):
        part = device_filter.filter_snapshot(lacking)
        assert [(index, device is None) for index, device in part.devices_by_index.items()] == [(14, False), (15, True)]
        figures = device_filter.filtered_figures(lacking)
        assert (sorted(figures.missing_devices), sorted(figures.hidden_devices)) == ([15], list(range(14)))
    assert not DeviceFilter(frozenset((5,))).filtered_figures(lacking).missing_devices
    container = replace(lacking, instance=replace(HOST.instance, expected_device_indices=tuple(range(4, 15))))
    figures = Figures(container)
    assert (sorted(figures.missing_devices), sorted(figures.hidden_devices)) == ([], [0, 1, 2, 3])


def test_what_ended_is_shown_where_it_was() -> None:
    near, far = (
        EndedProcess(pid, 0, "root", "", str(pid), None, False, 1.0, 2.0, 2, 1, device_indices=(pid,)) for pid in (1, 9)
    )
    device_filter = DeviceFilter(frozenset((1, 2)))
    part = device_filter.filter_snapshot(replace(HOST, ended=(near, far)))
    assert part.ended == (near,)
    assert device_filter.filter_ended((near, far), part) == (near,)
    assert DeviceFilter().filter_ended((near, far), HOST) == (near, far)


def test_cores_that_a_process_would_see() -> None:
    figures = DeviceFilter(first_core=3, core_count=2).filtered_figures(HOST)
    assert [core.index for core in figures.cores] == [3, 4]
    assert figures.hidden_devices == set(range(16)) - {1, 2}
    physical = DeviceFilter(first_core=3, core_count=1, logical_neuroncore_config=2).filter_snapshot(LNC)
    assert [core.index for core in physical.cores] == [6, 7]
    of_host = DeviceFilter(first_core=3, core_count=1).filter_snapshot(LNC)
    assert LNC.instance.logical_neuroncore_config == 2
    assert of_host.cores == physical.cores


def test_a_process_of_which_only_the_device_is_known_goes_with_it() -> None:
    opened = replace(HOST, processes=(process_of(7, "x", [2]), process_of(8, "y", [9])))
    assert [process.pid for process in DeviceFilter(frozenset((2,))).filter_snapshot(opened).processes] == [7]


def test_what_is_not_there_is_named() -> None:
    assert [DeviceFilter(frozenset((index,))).first_missing_device(HOST) for index in (15, 16)] == ["", "16"]
    assert DeviceFilter(device_names=frozenset(("0000:00:00.0",))).first_missing_device(HOST) == "0000:00:00.0"
