"""neuron-ls documents against literal text; the layouts were compared by hand with captures of the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import catalog
from neurontools.model import Process, Snapshot
from neurontools.util.formats import Column, ascii_table, encode_go_json, encode_go_string
from neurontools.util.terminal import cell_width, escape_controls
from neurontools.views.device_list import NoSuchDevice, device_list_json, device_list_object, device_list_table
from tests.harness.snapshots import process_of, snapshot_of, with_device

GOLDEN = Path(__file__).parent / "golden"
TRAIN = "torchrun --nproc_per_node=2 train.py --learning-rate 1e-3 --batch-size 8 --epochs 10"
NASTY = 'sh -c "\x1b[31mred\x07\n\u202egnp\x9b"\udcff café 神经元 <a&b>'
TWO = (process_of(4242, TRAIN, [0]), process_of(4243, "python3 infer.py", [0]))
SHARED = (process_of(4242, TRAIN, [0, 1]), process_of(4243, "python3 infer.py", [1]))
MONITOR = process_of(5000, "neuron-monitor", range(16), None)
NASTY_HOST = snapshot_of("trn1.2xlarge", [process_of(1, NASTY, [0])])
WATCHED = snapshot_of("trn1.32xlarge", [*TWO, MONITOR])

CASES: dict[str, tuple[Snapshot, dict[str, Any]]] = {
    "one_device_two_processes.txt": (snapshot_of("trn1.2xlarge", TWO), {}),
    "shared_devices.txt": (snapshot_of("inf2.24xlarge", SHARED), {"device_indices": [0, 1, 2]}),
    "a_process_a_device.txt": (snapshot_of("inf2.24xlarge", [process_of(4242, TRAIN, [0, 1, 2])]), {}),
    "all_processes.txt": (WATCHED, {"all_processes": True, "device_indices": [0, 1]}),
    "without_the_monitor.txt": (WATCHED, {"device_indices": [1]}),
    "no_commands.txt": (snapshot_of("inf2.xlarge", [process_of(4290, "", [0])]), {"wide": True}),
    "trn2.48xlarge_lnc2.txt": (snapshot_of("trn2.48xlarge"), {"device_indices": [0, 15]}),
    "trn2.3xlarge_lnc1.txt": (snapshot_of("trn2.3xlarge"), {"logical_neuroncore_config": 1}),
    "inferred_and_unknown.txt": (snapshot_of("inf1.24xlarge"), {"device_indices": [0, 15]}),
    "nasty_command.txt": (NASTY_HOST, {"wide": True}),
    "topology_torus.txt": (snapshot_of("trn1.32xlarge"), {"topology": True}),
    "trn2.48xlarge_lnc2.json": (snapshot_of("trn2.48xlarge"), {"device_indices": [15]}),
    "nasty_command.json": (NASTY_HOST, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_document_is_the_golden_one(name: str) -> None:
    snapshot, options = CASES[name]
    render = device_list_json if name.endswith(".json") else device_list_table
    assert render(snapshot, **options) == (GOLDEN / name).read_bytes().decode()


@pytest.mark.parametrize("instance_type", catalog.names())
def test_every_instance_type_renders(instance_type: str) -> None:
    kind = catalog.load(instance_type)
    snapshot = snapshot_of(instance_type)
    table = device_list_table(snapshot, topology=True)
    header, _, rest = table.partition("+-")
    assert f"instance-type: {instance_type}\n" in header
    assert ("logical-neuroncore-config: " in header) == (len(kind.family.lnc_supported) > 1)
    assert ("CONNECTED" in rest) == any(kind.topology.connected_to)
    picture = rest.partition("Neuron Device Topology")[2]
    assert all(f"[{index:>2} ]" in picture for index in range(kind.device_count))
    devices = json.loads(device_list_json(snapshot))
    assert [device["neuron_device"] for device in devices] == list(range(kind.device_count))
    assert sum(device["nc_count"] for device in devices) == kind.logical_core_count()
    told = kind.family.lnc_default if len(kind.family.lnc_supported) > 1 else None
    assert {device.get("logical_neuroncore_config") for device in devices} == {told}


@pytest.mark.parametrize("asked", [2, 3, 0, None])
def test_lnc_that_the_hardware_lacks_counts_as_none(asked: int | None) -> None:
    snapshot = snapshot_of("trn1.2xlarge")
    assert device_list_table(snapshot, logical_neuroncore_config=asked) == device_list_table(snapshot)
    assert device_list_json(snapshot, logical_neuroncore_config=asked) == device_list_json(snapshot)


def test_unknown_instance_id_is_a_dash_in_the_table_and_empty_in_json() -> None:
    known = snapshot_of("trn1.2xlarge")
    snapshot = replace(known, instance=replace(known.instance, instance_id=None))
    assert "instance-id: -\n" in device_list_table(snapshot)
    assert json.loads(device_list_json(snapshot))[0]["instance_id"] == ""


def test_inferred_links_are_marked() -> None:
    snapshot = with_device(snapshot_of("inf2.24xlarge"), 0, inferred_fields=("connected_to",))
    assert "| 1 (inferred) |" in device_list_table(snapshot)


def test_devices_come_in_their_order_and_once() -> None:
    document = device_list_json(snapshot_of("trn1.32xlarge"), device_indices=[7, 0, 7])
    assert [device["neuron_device"] for device in json.loads(document)] == [0, 7]


@pytest.mark.parametrize("render", [device_list_table, device_list_json])
def test_a_device_that_the_host_lacks(render: Callable[..., str]) -> None:
    with pytest.raises(NoSuchDevice) as raised:
        render(snapshot_of("inf1.6xlarge"), device_indices=[1, 4, 9])
    assert str(raised.value) == "no device 4, 9 on this host; its devices: 0, 1, 2, 3"


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, None),
        ({"ultraserver_id": "us-1"}, "us-1"),
        ({"ultraserver_id": "us-1", "inferred_fields": ("ultraserver_id",)}, None),
    ],
)
def test_an_ultraserver_is_told_where_it_is_known(known: dict[str, Any], told: str | None) -> None:
    snapshot = snapshot_of("trn2u.48xlarge")
    document = json.loads(device_list_object(replace(snapshot, instance=replace(snapshot.instance, **known))))
    assert document.get("ultraserver_id") == told
    assert [device["neuron_device"] for device in document["neuron_devices"]] == list(range(16))
    assert not any("instance_type" in device for device in document["neuron_devices"])


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # surrogates and control characters too
VERSIONS = st.none() | st.sampled_from(["2.34.10", "", "\x1b]0;x\x07"])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    instance_type = draw(st.sampled_from(catalog.names()))
    device_count = catalog.load(instance_type).device_count
    devices = st.sets(st.integers(0, device_count - 1)).map(sorted)

    def process(pid: int) -> Process:
        return process_of(pid, draw(ANY_TEXT), draw(devices), draw(VERSIONS))

    return snapshot_of(instance_type, [process(pid) for pid in draw(st.sets(st.integers(1, 2**22), max_size=6))])


def _is_harmless(document: str) -> bool:
    return all(escape_controls(line) == line for line in document.split("\n"))


@given(snapshots(), st.booleans(), st.booleans(), st.none() | st.sampled_from([1, 2]))
def test_table_is_straight_and_harmless(snapshot: Snapshot, wide: bool, all_processes: bool, lnc: int | None) -> None:
    table = device_list_table(
        snapshot, wide=wide, all_processes=all_processes, topology=True, logical_neuroncore_config=lnc
    )
    lines = [line for line in table.split("\n") if line.startswith(("+", "|"))]
    assert len({cell_width(line) for line in lines}) == 1
    assert _is_harmless(table)
    table.encode()
    shown = [process for process in snapshot.processes if all_processes or process.runtime_version is not None]
    rows = sum(max(1, sum(device.index in process.device_indices for process in shown)) for device in snapshot.devices)
    assert len([line for line in lines if line.startswith("|")]) == 2 + rows


@given(snapshots(), st.booleans())
def test_json_says_what_the_snapshot_says(snapshot: Snapshot, all_processes: bool) -> None:
    document = device_list_json(snapshot, all_processes=all_processes)
    assert _is_harmless(document)
    devices = json.loads(document.encode())
    for device, told in zip(snapshot.devices, devices, strict=True):
        assert told["bdf"] == ("" if "bdf" in device.inferred_fields else device.bdf or "")
        assert told["connected_to"] == (list(device.connected_to) or None)
        assert told["memory_size"] == device.memory_bytes
        assert told["neuron_processes"] == [
            {
                "pid": process.pid,
                "command": _valid(process.command),
                "neuron_runtime_version": "NA" if process.runtime_version is None else process.runtime_version,
            }
            for process in snapshot.processes
            if device.index in process.device_indices and (all_processes or process.runtime_version is not None)
        ]
    assert [core for told in devices for core in told["neuroncore_ids"]] == list(
        range(len(snapshot.cores) // snapshot.instance.logical_neuroncore_config)
    )


def _valid(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('"\\', r'"\"\\"'),
        ("<>&", r'"\u003c\u003e\u0026"'),
        ("\b\f\n\r\t\0\x1b", r'"\b\f\n\r\t\u0000\u001b"'),
        ("\x7f\x9b\u2028\u202e", r'"\u007f\u009b\u2028\u202e"'),
        ("é神\U0001f600", '"é神\U0001f600"'),
        ("\ud800", '"\ufffd"'),
    ],
)
def test_escapes_of_json(value: str, text: str) -> None:
    assert encode_go_string(value) == text
    assert json.loads(text) == value.replace("\ud800", "\ufffd")


def test_what_no_document_has_yet() -> None:
    assert encode_go_json({"a": -1.5, "b": True, "c": {}}) == '{\n    "a": -1.5,\n    "b": true,\n    "c": {}\n}'
    assert encode_go_json([]) == "[]"
    column = Column[str](("AN ODD", ""), str)
    assert ascii_table((column,), []) == "+--------+\n| AN ODD |\n|        |\n+--------+\n+--------+\n"
