from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from neurontools import catalog
from neurontools.model import Process, Snapshot
from neurontools.text.terminal import cell_width, visible
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.snapshots import process_of, snapshot_of

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
    return all(visible(line) == line for line in document.split("\n"))


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
