"""What a notebook shows of a snapshot."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest

from neurontools.model import DeviceMemory, EccCounters, LatencyHistogram, Snapshot, logical_cores
from tests.harness.scenario_host import ScenarioHost

LONGEST = 320


@pytest.fixture(scope="module")
def busy() -> Snapshot:
    host = ScenarioHost("trn2.48xlarge", "steady")
    host.at(10)
    return host.at(11)


def test_a_snapshot_is_a_line(busy: Snapshot) -> None:
    taken = replace(busy, sequence=12, taken_at_unix_seconds=1_795_298_400.9)
    assert repr(taken) == (
        "<Snapshot 12 of 'trn2.48xlarge', simulated, 2026-11-21 22:00:00 UTC: "
        "16 devices, 128 NeuronCores, 64 processes>"
    )
    assert repr(replace(taken, warnings=("a", "b"))).endswith("64 processes, 2 warnings>")
    assert ", 1e+300: 16 devices" in repr(replace(taken, taken_at_unix_seconds=1e300))


def test_every_part_is_a_line(busy: Snapshot) -> None:
    nasty = replace(busy.processes[0], command="x\n\x1b[31m" * 100)
    seen = set()

    def look(part: object) -> None:
        if isinstance(part, tuple):
            for each in part[:2]:
                look(each)
        elif is_dataclass(part):
            seen.add(type(part).__name__)
            assert repr(part).isprintable()
            assert len(repr(part)) <= LONGEST, repr(part)
            for field in fields(part):
                look(getattr(part, field.name))

    look((replace(busy, processes=(nasty,)), logical_cores(busy)))
    assert {"Snapshot", "Device", "NeuronCore", "LogicalNeuronCore", "Process", "LoadedModel", "Host"} <= seen


def test_a_core_shows_who_holds_it_and_what_is_not_shown_is_hinted_at(busy: Snapshot) -> None:
    core = replace(busy.cores[2], owner_pid=4242, utilization_ratio=0.41849)
    assert repr(core) == "NeuronCore(index=2, device_index=0, owner_pid=4242, utilization_ratio=0.4185, …)"
    assert repr(replace(core, owner_pid=None)).startswith("NeuronCore(index=2, device_index=0, owner_pid=None, ")


def test_counters_show_what_is_not_their_default() -> None:
    assert repr(DeviceMemory()) == "DeviceMemory()"
    assert repr(DeviceMemory(tensors_bytes=4096, constants_bytes=None)) == (
        "DeviceMemory(constants_bytes=None, tensors_bytes=4096)"
    )
    assert repr(EccCounters(mem_corrected_total=0)) == "EccCounters(mem_corrected_total=0)"
    many = LatencyHistogram(tuple(range(100)), (1,) * 100, 2.5)
    assert repr(many) == "LatencyHistogram(bucket_indices=<100>, bucket_counts=<100>, sum_seconds=2.5)"
